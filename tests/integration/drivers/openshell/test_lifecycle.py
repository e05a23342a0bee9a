"""The walk of one revision over the scripted gateway."""

from __future__ import annotations

from oce.contracts.drivers import abilities_of


async def test_a_revision_walks_from_namespace_to_nothing(bench):
    await bench.deploy()
    ref = await bench.driver.provision_harness(bench.harness())
    assert ref == bench.driver.harness_resource(bench.revision())
    assert len(bench.gateway.made("CreateSandbox")) == 1
    endpoint = await bench.driver.harness_endpoint(bench.harness())
    assert (
        endpoint.url
        == f"ws://{bench.workspace}--{bench.sandbox}.openshell.localhost:{bench.gateway.port}"
    )
    assert endpoint.control_url == f"ws://127.0.0.1:{bench.gateway.port}"
    attachments = await bench.keys.attach_for_revision(bench.revision(), [])
    assert attachments == ()
    assert (await bench.driver.observe_harness(bench.revision())).state == "running"
    await bench.driver.cleanup(bench.removal())
    assert not bench.gateway.state.sandboxes
    await bench.driver.cleanup(bench.removal())
    await bench.driver.cleanup(bench.removal(whole=True))
    state = bench.gateway.state
    assert not (state.workspaces)
    assert not (state.providers)
    assert not (state.profiles)
    assert not (state.services)


def test_abilities(bench):
    found = abilities_of(bench.driver)
    assert found.harness_home == "/sandbox/.openclaw-runtime/home"
    assert found.provisions
    assert found.transport
    assert found.namespaces
    assert found.policies
    assert found.live_policies
    assert found.enrolls  # a typed refusal
    assert found.workspace_setup
    assert found.node_peers
