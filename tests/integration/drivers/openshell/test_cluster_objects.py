"""Namespaces on a cluster: order of effects, ownership put in, nothing foreign touched (§22.4 and §22.6)."""

from __future__ import annotations

import pytest

from oce.contracts.refusals import NamespaceRefused, OwnershipConflict, RevisionUnsupported
from oce.contracts.sandbox import CleanupContext, NamespaceContext
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.testing.openshell_bench import NAMESPACE_ID, a_namespace

POLICY = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "np"}}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}}


def settings(mode="operator", account=ACCOUNT):
    return parse_settings(
        {
            "gateway": {
                "workspaceMode": mode,
                "operatorNamespaceLabels": {"openshell.ai/workspace": "true"},
                "operatorWorkspaceResources": [account],
                "networkPolicyResources": [POLICY],
            },
            "kubernetes": {
                "runtimeClassName": "rc",
                "serviceAccount": {"mode": "gatewayConfigured"},
                "sandboxDataMount": {
                    "subPath": "w",
                    "mountPath": "/sandbox/enterprise",
                    "readOnly": False,
                },
            },
            "policy": {
                "process": {"runAsUser": "1000", "runAsGroup": "1000"},
                "networkPolicies": [
                    {
                        "name": "web",
                        "binaries": [{"path": "/usr/bin/curl"}],
                        "endpoints": [{"host": "a.example.com", "ports": [443]}],
                    }
                ],
            },
        }
    )


class Objects:
    """The cluster's objects in memory, and the order in which they came and went."""

    def __init__(self, labels=None):
        self.calls = []
        self.labels = labels or {}

    async def apply(self, namespace, manifest):
        self.calls.append(("apply", manifest["kind"], manifest))

    async def delete(self, namespace, manifest):
        self.calls.append(("delete", manifest["kind"], manifest))

    async def read(self, namespace, kind, name):
        return {"metadata": {"name": name, "labels": self.labels}}


def driver(bench, **changes):
    return OpenShellSandbox("box", settings(**changes), bench.client, bench.clock)


async def test_the_order_is_labels_workspace_network_health_workspace(bench):
    objects = Objects()
    context = NamespaceContext(namespace=a_namespace(), objects=objects)
    await driver(bench).ensure_namespace(context)
    assert [kind for _, kind, _ in objects.calls] == [
        "Namespace",
        "ServiceAccount",
        "NetworkPolicy",
    ]
    assert bench.gateway.methods()[:3] == ["Health", "GetWorkspace", "CreateWorkspace"]
    metadata = objects.calls[1][2]["metadata"]
    assert metadata["namespace"] == a_namespace().name
    assert metadata["labels"]["openclaw.dev/namespace"] == NAMESPACE_ID
    assert "namespace" not in ACCOUNT["metadata"]
    await driver(bench).cleanup(CleanupContext(namespace=a_namespace(), objects=objects))
    assert [(verb, kind) for verb, kind, _ in objects.calls[3:]] == [
        ("delete", "NetworkPolicy"),
        ("delete", "ServiceAccount"),
    ]
    assert not bench.gateway.state.workspaces


async def test_a_foreign_label_or_owner_is_refused_before_anything_is_applied(bench):
    objects = Objects(labels={"openshell.ai/workspace": "other"})
    context = NamespaceContext(namespace=a_namespace(), objects=objects)
    with pytest.raises(OwnershipConflict):
        await driver(bench).ensure_namespace(context)
    foreign = {**ACCOUNT, "metadata": {"name": "sa", "namespace": "elsewhere"}}
    with pytest.raises(OwnershipConflict, match="namespace"):
        await driver(bench, account=foreign).ensure_namespace(context)
    assert objects.calls == []
    assert bench.gateway.requests == []


async def test_managed_mode_and_a_missing_cluster_fail_before_any_call(bench):
    objects = Objects()
    context = NamespaceContext(namespace=a_namespace(), objects=objects)
    managed = driver(bench, mode="managed")
    for call in (
        managed.ensure_namespace(context),
        managed.provision_harness(bench.harness()),
        managed.observe_harness(bench.revision()),
        managed.cleanup(bench.removal(whole=True)),
    ):
        with pytest.raises(RevisionUnsupported) as refused:
            await call
        assert refused.value.code == "SANDBOX_MODE_UNSUPPORTED"
    with pytest.raises(NamespaceRefused):
        await driver(bench).ensure_namespace(bench.namespace())
    assert objects.calls == []
    assert bench.gateway.requests == []
