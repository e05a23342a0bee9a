"""Namespaces on a cluster: order of effects, ownership put in, preconditions, nothing foreign touched (§22.1, 4, 6; BR-18)."""

from __future__ import annotations

import pytest

from oce.contracts.refusals import (
    DriverRefusal,
    NamespaceRefused,
    OwnershipConflict,
    RevisionUnsupported,
)
from oce.contracts.sandbox import CleanupContext, NamespaceContext, ObjectIdentity
from oce.domain.failures import Tempo
from oce.drivers.openshell.cluster import owned
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.testing.memory_objects import MemoryObjects
from oce.testing.openshell_bench import (
    ACCOUNT_OBJECT,
    NAMESPACE_ID,
    NETWORK_OBJECT,
    a_namespace,
    kubernetes_settings,
)

NAME = a_namespace().name
APPLIED = [("apply", "Namespace"), ("apply", "ServiceAccount"), ("apply", "NetworkPolicy")]


@pytest.fixture
def objects():
    made = MemoryObjects()
    made.put(NAME, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}})
    return made


def driver(bench, **changes):
    return OpenShellSandbox("box", kubernetes_settings(**changes), bench.client, bench.clock)


def context(objects):
    return NamespaceContext(namespace=a_namespace(), objects=objects)


def removal(objects):
    return CleanupContext(namespace=a_namespace(), objects=objects)


def _done(objects):
    return [(verb, kind) for verb, kind, _ in objects.calls]


def _account(objects):
    return objects.objects[NAME, "v1", "ServiceAccount", "sa"]


async def test_g04_the_order_is_labels_workspace_network_health_workspace(bench, objects):
    await driver(bench).ensure_namespace(context(objects))
    assert _done(objects) == APPLIED
    assert bench.gateway.methods()[:3] == ["Health", "GetWorkspace", "CreateWorkspace"]
    metadata = _account(objects)["metadata"]
    assert metadata["namespace"] == NAME
    assert metadata["labels"]["openclaw.dev/namespace"] == NAMESPACE_ID
    assert metadata["annotations"]["openclaw.dev/namespace-id"] == NAMESPACE_ID
    assert "namespace" not in ACCOUNT_OBJECT["metadata"]
    await driver(bench).cleanup(removal(objects))
    assert _done(objects)[3:] == [("delete", "NetworkPolicy"), ("delete", "ServiceAccount")]
    assert not bench.gateway.state.workspaces
    await driver(bench).cleanup(removal(objects))
    assert len(objects.objects) == 1


async def test_br18_an_unchanged_pass_writes_nothing_and_a_strangers_field_stays(bench, objects):
    for _ in range(5):
        await driver(bench).ensure_namespace(context(objects))
    assert objects.writes == 3
    _account(objects)["metadata"]["labels"]["team"] = "theirs"
    changed = {**ACCOUNT_OBJECT, "automountServiceAccountToken": False}
    await driver(bench, account=changed).ensure_namespace(context(objects))
    assert objects.writes == 4
    assert _account(objects)["metadata"]["labels"]["team"] == "theirs"
    assert _account(objects)["automountServiceAccountToken"] is False


async def test_br18_a_field_of_another_manager_is_a_conflict_not_a_fight(bench, objects):
    manifest = {
        **owned(ACCOUNT_OBJECT, a_namespace()),
        "automountServiceAccountToken": True,
    }
    objects.put(NAME, manifest, manager="somebody")
    wanted = {**ACCOUNT_OBJECT, "automountServiceAccountToken": False}
    with pytest.raises(OwnershipConflict, match="automount"):
        await driver(bench, account=wanted).ensure_namespace(context(objects))
    assert _account(objects)["automountServiceAccountToken"] is True


async def test_g06_a_foreign_label_or_owner_is_refused_before_anything_is_applied(bench, objects):
    namespace = objects.objects[NAME, "v1", "Namespace", NAME]
    namespace["metadata"]["labels"] = {"openshell.ai/workspace": "other"}
    with pytest.raises(OwnershipConflict):
        await driver(bench).ensure_namespace(context(objects))
    foreign = {**ACCOUNT_OBJECT, "metadata": {"name": "sa", "namespace": "elsewhere"}}
    with pytest.raises(OwnershipConflict, match="namespace"):
        await driver(bench, account=foreign).ensure_namespace(context(objects))
    stamped = {
        **ACCOUNT_OBJECT,
        "metadata": {"name": "sa", "annotations": {"openclaw.dev/namespace-id": "ns_other"}},
    }
    with pytest.raises(OwnershipConflict, match="namespace-id"):
        await driver(bench, account=stamped).ensure_namespace(context(objects))
    assert objects.calls == []
    assert bench.gateway.requests == []


async def test_g06_an_object_of_ours_by_name_alone_is_neither_seized_nor_deleted(bench, objects):
    objects.put(NAME, ACCOUNT_OBJECT)
    with pytest.raises(OwnershipConflict, match="labels"):
        await driver(bench).ensure_namespace(context(objects))
    with pytest.raises(OwnershipConflict, match="labels"):
        await driver(bench).cleanup(removal(objects))
    assert _account(objects)["metadata"]["name"] == "sa"


@pytest.mark.parametrize("change", ["uid", "resourceVersion"])
async def test_an_object_that_changed_since_it_was_read_is_left_for_the_next_pass(
    bench, objects, change
):
    await driver(bench).ensure_namespace(context(objects))

    def meanwhile(point):
        if point == "before delete NetworkPolicy":
            key = (NAME, NETWORK_OBJECT["apiVersion"], "NetworkPolicy", "np")
            objects.objects[key]["metadata"][change] = "another"
            objects.interrupt = lambda _: None

    objects.interrupt = meanwhile
    with pytest.raises(DriverRefusal) as refused:
        await driver(bench).cleanup(removal(objects))
    assert refused.value.tempo is Tempo.RETRY
    await driver(bench).cleanup(removal(objects))
    assert len(objects.objects) == 1


async def test_an_apply_names_the_object_it_was_decided_on(objects):
    manifest = owned(ACCOUNT_OBJECT, a_namespace())
    await objects.apply(a_namespace(), manifest, None)
    for seen in (None, ObjectIdentity(uid="other", resource_version="1")):
        with pytest.raises(DriverRefusal):
            await objects.apply(a_namespace(), {**manifest, "secrets": []}, seen)
    assert "secrets" not in _account(objects)


async def test_every_cluster_effect_survives_a_death_before_and_after(bench, objects):
    points = []
    objects.interrupt = points.append
    await driver(bench).ensure_namespace(context(objects))
    await driver(bench).cleanup(removal(objects))
    assert len(points) == 10

    class Died(BaseException):
        pass

    for point in points:
        world = MemoryObjects()
        world.put(NAME, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}})

        def die(at, _point=point, _world=world):
            if at == _point:
                _world.interrupt = lambda _: None
                raise Died

        world.interrupt = die
        try:
            await driver(bench).ensure_namespace(context(world))
            await driver(bench).cleanup(removal(world))
        except Died:
            await driver(bench).ensure_namespace(context(world))
            assert len(world.objects) == 3, point
        await driver(bench).cleanup(removal(world))
        assert len(world.objects) == 1, point


async def test_g01_managed_mode_and_a_missing_cluster_fail_before_any_call(bench, objects):
    managed = driver(bench, mode="managed")
    for call in (
        managed.ensure_namespace(context(objects)),
        managed.provision_harness(bench.harness()),
        managed.harness_endpoint(bench.harness()),
        managed.harness_status(bench.status()),
        managed.withdraw_harness_exposure(bench.revision()),
        managed.workspace_node_peer_labels(bench.revision()),
        managed.enroll_harness(bench.harness(), {}),
        managed.observe_harness(bench.revision()),
        managed.cleanup(bench.removal()),
        managed.cleanup(bench.removal(whole=True)),
    ):
        with pytest.raises(RevisionUnsupported) as refused:
            await call
        assert refused.value.code == "SANDBOX_MODE_UNSUPPORTED"
    with pytest.raises(NamespaceRefused):
        await driver(bench).ensure_namespace(bench.namespace())
    assert objects.calls == []
    assert bench.gateway.requests == []
