"""Providers, profiles and policies: what a Sandbox holds, what the vault holds, what is in force."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import timestamp_pb2
from openshell._proto import datamodel_pb2, sandbox_pb2
from openshell._proto import openshell_pb2 as pb

SECRET = "sk-invented-0123456789"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def model_profile():
    return pb.ProviderProfile(
        id="oce-openai",
        category=pb.PROVIDER_PROFILE_CATEGORY_INFERENCE,
        credentials=[{"name": "api_key", "env_vars": ["OPENAI_API_KEY"], "required": True}],
        endpoints=[
            {
                "host": "api.openai.com",
                "port": 443,
                "protocol": "rest",
                "enforcement": 1,
                "access": 2,
                "path": "/v1/**",
            }
        ],
        binaries=[{"path": "/opt/oce/codex/codex"}],
    )


def files_profile():
    return pb.ProviderProfile(
        id="oce-codex-runtime",
        files=[
            {
                "path": "runtime.json",
                "content": "{{config.runtime_json}}",
                "env_var": "OPENCLAW_PLUGIN_RUNTIME_MANIFEST",
            }
        ],
    )


async def import_profiles(control, tools, *profiles):
    return await control.ImportProviderProfiles(
        pb.ImportProviderProfilesRequest(
            **tools.in_default(profiles=[{"profile": profile} for profile in profiles])
        )
    )


def provider(name, kind, **fields):
    return datamodel_pb2.Provider(metadata=datamodel_pb2.ObjectMeta(name=name), type=kind, **fields)


async def put(control, tools, message):
    return (
        await control.CreateProvider(pb.CreateProviderRequest(**tools.in_default(provider=message)))
    ).provider


@pytest.fixture
async def model(control, tools):
    assert (await import_profiles(control, tools, model_profile(), files_profile())).imported
    made = await put(control, tools, provider("key", "oce-openai", credentials={"api_key": SECRET}))
    await put(
        control,
        tools,
        provider("runtime", "oce-codex-runtime", config={"runtime_json": "x" * 65536}),
    )
    return made


async def status(control, tools, name, **fields):
    return (
        await control.GetSandboxProviderStatus(
            pb.GetSandboxProviderStatusRequest(
                **tools.in_default(sandbox="one", provider=name, **fields)
            )
        )
    ).status


async def test_a_value_goes_to_the_vault_and_nowhere_else(world, control, tools, model):
    assert list(world.egress.values.values()) == [{"api_key": SECRET}]
    read = (
        await control.GetProvider(pb.GetProviderRequest(**tools.in_default(name="key")))
    ).provider
    assert dict(read.credentials) == {"api_key": ""}
    assert SECRET.encode() not in model.SerializeToString()
    spec = pb.SandboxSpec(providers=["key", "runtime"])
    await tools.create(control, spec=spec)
    await tools.ready(control, "one")
    launch = world.main().launch
    assert launch.environment["OPENAI_API_KEY"] == "openshell:resolve:env:OPENAI_API_KEY"
    path = launch.environment["OPENCLAW_PLUGIN_RUNTIME_MANIFEST"]
    assert path == "/run/openshell/providers/runtime/runtime.json"
    (served,) = world.egress.served.values()
    (binding,) = served.bindings
    assert binding.placeholder == launch.environment["OPENAI_API_KEY"]
    assert world.egress.values[binding.provider_id][binding.credential_key] == SECRET
    assert [(e.host, e.port, e.path) for e in binding.endpoints] == [
        ("api.openai.com", 443, "/v1/**")
    ]
    assert [rule.key for rule in served.policy.rules] == ["_provider_key"]
    assert served.policy.rules[0].binaries == ("/opt/oce/codex/codex",)
    for name in ("key", "runtime"):
        assert (await status(control, tools, name)).state == pb.PROVIDER_READINESS_STATE_READY
    await world.close()
    for file in world.state.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


async def test_an_update_rewrites_files_in_place_and_is_fenced(world, control, tools, model):
    await tools.create(control, spec=pb.SandboxSpec(providers=["runtime"]))
    sandbox = (await tools.ready(control, "one")).sandbox
    file = world.state / "sandboxes" / sandbox.metadata.id / "providers/runtime/runtime.json"
    assert file.read_text() == "x" * 65536
    change = provider("runtime", "", config={"runtime_json": '{"a": 1}'})
    change.metadata.resource_version = 7
    async with tools.refused(grpc.StatusCode.ABORTED) as caught:
        await control.UpdateProvider(pb.UpdateProviderRequest(**tools.in_default(provider=change)))
    assert tools.reason(caught.value) == "RESOURCE_VERSION_CONFLICT"
    change.metadata.resource_version = 1
    answer = await control.UpdateProvider(
        pb.UpdateProviderRequest(**tools.in_default(provider=change))
    )
    (receipt,) = answer.target_receipts

    async def ready():
        found = await status(control, tools, "runtime", receipt_id=receipt.receipt_id)
        return found.state == pb.PROVIDER_READINESS_STATE_READY

    await tools.eventually(ready)
    assert file.read_text() == '{"a": 1}'
    assert file.stat().st_mode & 0o777 == 0o444


async def test_attach_detach_and_their_receipts(world, control, tools, model):
    made = await tools.create(control)
    await tools.ready(control, "one")
    scope = tools.in_default(sandbox="one", provider="key")
    async with tools.refused(grpc.StatusCode.ABORTED):
        await control.AttachSandboxProvider(
            pb.AttachSandboxProviderRequest(**scope, expected_resource_version=9)
        )
    async with tools.refused(grpc.StatusCode.NOT_FOUND):
        await status(control, tools, "key")
    attached = await control.AttachSandboxProvider(
        pb.AttachSandboxProviderRequest(
            **scope, expected_resource_version=made.sandbox.metadata.resource_version
        )
    )
    assert attached.attached

    async def state(receipt, wanted):
        found = await status(control, tools, "key", receipt_id=receipt.receipt_id)
        return found.state == wanted

    await tools.eventually(lambda: state(attached.receipt, pb.PROVIDER_READINESS_STATE_READY))
    async with tools.refused(PRECONDITION, "attached to sandbox(es): one"):
        await control.DeleteProvider(pb.DeleteProviderRequest(**tools.in_default(name="key")))
    detached = await control.DetachSandboxProvider(pb.DetachSandboxProviderRequest(**scope))
    assert detached.detached
    await tools.eventually(lambda: state(detached.receipt, pb.PROVIDER_READINESS_STATE_REVOKED))
    (served,) = world.egress.served.values()
    assert served.bindings == ()
    await control.DeleteProvider(pb.DeleteProviderRequest(**tools.in_default(name="key")))
    await tools.eventually(lambda: not world.egress.values)


async def test_provider_refusals_name_the_field_and_never_the_value(control, tools, model):
    for message, words in (
        (provider("x", "oce-openai"), ("api_key", "required")),
        (provider("x", "oce-openai", credentials={"api_key": f"{SECRET}\n"}), ("CR, LF",)),
        (provider("x", "oce-openai", credentials={"other": SECRET}), ("other", "not a credential")),
        (provider("x", "oce-codex-runtime"), ("runtime_json",)),
        (provider("x", "oce-openai", config={"a": "x" * 65537}), ("65536",)),
        (provider("key", "oce-codex-runtime", credentials={"a": SECRET}), ()),
        (
            provider(
                "x",
                "oce-openai",
                credentials={"api_key": SECRET},
                credential_expiration_times={"api_key": timestamp_pb2.Timestamp(seconds=1)},
            ),
            ("credential_expiration_times", "not supported"),
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await put(control, tools, message)
        assert SECRET not in caught.value.details()
        for word in words:
            assert word in caught.value.details()
    async with tools.refused(PRECONDITION, "not found"):
        await put(control, tools, provider("x", "unknown"))
    async with tools.refused(INVALID, "type cannot be changed"):
        await control.UpdateProvider(
            pb.UpdateProviderRequest(**tools.in_default(provider=provider("key", "other")))
        )


async def test_profiles_are_imported_whole_or_not_at_all(control, tools, model):
    fresh, broken = files_profile(), files_profile()
    fresh.id, broken.id = "fresh", "broken"
    broken.files[0].path = "../escape"
    answer = await import_profiles(control, tools, fresh, broken)
    assert not answer.imported
    assert [(d.profile_id, d.field, d.severity) for d in answer.diagnostics] == [
        ("broken", "files.path", "error")
    ]
    async with tools.refused(grpc.StatusCode.NOT_FOUND):
        await control.GetProviderProfile(
            pb.GetProviderProfileRequest(**tools.in_default(id="fresh"))
        )
    async with tools.refused(PRECONDITION, "in use"):
        await control.DeleteProviderProfile(
            pb.DeleteProviderProfileRequest(**tools.in_default(id="oce-openai"))
        )
    update = pb.UpdateProviderProfilesRequest(
        **tools.in_default(id="oce-openai", profile={"profile": model_profile()})
    )
    async with tools.refused(INVALID, "expected_resource_version"):
        await control.UpdateProviderProfiles(update)
    update.expected_resource_version = 1
    assert (await control.UpdateProviderProfiles(update)).profile.resource_version == 2


def policy(**rules):
    result = sandbox_pb2.SandboxPolicy(version=1)
    for key, (host, binary) in rules.items():
        rule = result.network_policies[key]
        rule.endpoints.add(host=host, port=443, protocol="rest", enforcement=1, access=1)
        rule.binaries.add(path=binary)
    return result


async def test_a_live_policy_becomes_loaded_and_supersedes(world, control, tools):
    await tools.create(
        control, spec=pb.SandboxSpec(policy=policy(a=("a.example", "/usr/bin/curl")))
    )
    sandbox = (await tools.ready(control, "one")).sandbox
    request = pb.UpdateConfigRequest(
        **tools.in_default(
            sandbox="one",
            policy=policy(b=("b.example", "/usr/bin/curl")),
            expected_resource_version=sandbox.metadata.resource_version,
            annotations={"openclaw.dev/operation": "1"},
            request_id=tools.new_id(),
        )
    )
    answer = await control.UpdateConfig(request)
    assert answer.version == 2

    async def loaded():
        found = await control.GetSandboxPolicyStatus(
            pb.GetSandboxPolicyStatusRequest(**tools.in_default(sandbox="one"))
        )
        done = found.revision.status == pb.POLICY_STATUS_LOADED and found.active_version == 2
        return found if done else None

    found = await tools.eventually(loaded)
    assert found.revision.policy_hash == answer.policy_hash
    assert dict(found.revision.provenance) == {"openclaw.dev/operation": "1"}
    (served,) = world.egress.served.values()
    assert [rule.key for rule in served.policy.rules] == ["b"]
    old = await control.GetSandboxPolicyStatus(
        pb.GetSandboxPolicyStatusRequest(**tools.in_default(sandbox="one", version=1))
    )
    assert old.revision.status == pb.POLICY_STATUS_SUPERSEDED
    assert await control.UpdateConfig(request) == answer


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"process": {"run_as_user": "root"}}, INVALID, ("root",)),
        ({"filesystem": {"read_only": ["/a/../b"]}}, INVALID, ("traversal",)),
        ({"filesystem": {"read_write": ["/"]}}, INVALID, ("broad",)),
        ({"network_policies": {"_provider_x": {}}}, INVALID, ("_provider_",)),
        ({"version": 2}, INVALID, ("version",)),
    ],
)
async def test_policies_that_are_refused(control, tools, change, code, words):
    spec = pb.SandboxSpec(policy=sandbox_pb2.SandboxPolicy(**{"version": 1, **change}))
    async with tools.refused(code, *words):
        await tools.create(control, spec=spec)


async def test_ambiguity_names_the_conflicting_field(control, tools):
    both = policy(a=("a.example", "/usr/bin/curl"), b=("a.example", "/usr/bin/curl"))
    both.network_policies["b"].endpoints[0].allowed_ips.append("10.0.0.0/8")
    async with tools.refused(
        PRECONDITION, "network endpoint ambiguity validation failed", "allowed_ips"
    ):
        await tools.create(control, spec=pb.SandboxSpec(policy=both))


async def test_unknown_fields_are_refused_not_dropped(control, tools):
    spec = pb.SandboxSpec.FromString(pb.SandboxSpec().SerializeToString() + b"\xc2\x3e\x01x")
    async with tools.refused(INVALID, "not a field"):
        await tools.create(control, spec=spec)
    spec = pb.SandboxSpec(
        policy=sandbox_pb2.SandboxPolicy.FromString(policy().SerializeToString() + b"\xc2\x3e\x01x")
    )
    async with tools.refused(INVALID, "not a field"):
        await tools.create(control, spec=spec)


async def test_a_value_that_the_vault_lost_is_never_called_ready(world, control, tools, model):
    await tools.create(control, spec=pb.SandboxSpec(providers=["key"]))
    await tools.ready(control, "one")
    world.egress.values.clear()
    world.egress.versions.clear()
    await world.egress.events.put(None)

    async def failed():
        found = await status(control, tools, "key")
        return found.state == pb.PROVIDER_READINESS_STATE_FAILED

    await tools.eventually(failed)
    again = provider("key", "", credentials={"api_key": SECRET})
    await control.UpdateProvider(pb.UpdateProviderRequest(**tools.in_default(provider=again)))

    async def ready():
        found = await status(control, tools, "key")
        return found.state == pb.PROVIDER_READINESS_STATE_READY

    await tools.eventually(ready)


async def test_an_absent_vault_refuses_and_leaves_nothing(world, control, tools, model):
    world.egress.away = True
    async with tools.refused(grpc.StatusCode.UNAVAILABLE, "credential store"):
        await put(control, tools, provider("two", "oce-openai", credentials={"api_key": SECRET}))
    world.egress.away = False
    async with tools.refused(grpc.StatusCode.NOT_FOUND):
        await control.GetProvider(pb.GetProviderRequest(**tools.in_default(name="two")))
