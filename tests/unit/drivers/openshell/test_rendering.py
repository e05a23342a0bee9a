"""Rendering is pure and golden: a change of these bytes is a new render version."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.contracts.refusals import DriverRefusal, RevisionUnsupported
from oce.contracts.sandbox import (
    EnvironmentLiteral,
    EnvironmentSecret,
    HarnessContext,
    WorkspaceMount,
    WorkspaceSetup,
)
from oce.domain.names import native_hook_directory
from oce.domain.resources import Harness
from oce.domain.secret import SecretText
from oce.drivers.openshell import adoption, profiles, records
from oce.drivers.openshell.node_setup import from_code
from oce.drivers.openshell.policies import admit
from oce.drivers.openshell.rendering import interpreter, render
from oce.drivers.openshell.settings import HARNESS_HOME, parse_settings
from oce.drivers.openshell.wire import canonical_spec
from oce.testing.memory_objects import MemoryPrivateObjects
from oce.testing.openshell_bench import (
    REVISION_ID,
    SETUP_TOKEN,
    a_namespace,
    a_revision,
    native_requirements,
    requirements,
    setup_code,
)

PEM = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
GOLDEN = Path(__file__).parent / "golden"
RULE = {
    "name": "source-control",
    "binaries": [{"path": "/usr/bin/git"}],
    "endpoints": [{"host": "github.com", "ports": [443], "protocol": "tcp", "tls": "skip"}],
}
KUBERNETES = {
    "gateway": {"workspaceMode": "operator", "operatorNamespaceLabels": {"openshell.ai/x": "true"}},
    "kubernetes": {
        "runtimeClassName": "openshell-sandbox",
        "serviceAccount": {"mode": "gatewayConfigured"},
        "sandboxDataMount": {
            "subPath": "workspace",
            "mountPath": "/sandbox/enterprise",
            "readOnly": False,
        },
        "userNamespaces": True,
    },
    "policy": {"process": {"runAsUser": "1000", "runAsGroup": "1000"}, "networkPolicies": [RULE]},
}
LOCAL = {"local": {"limits": {"memoryBytes": 1 << 30, "processes": 256, "cpuPercent": 150}}}


def context(revision=None, **changes):
    return HarnessContext(
        namespace=a_namespace(),
        revision=revision or a_revision(),
        requirements=requirements(**changes),
        private=MemoryPrivateObjects(),
    )


def mount(**changes):
    values = {
        "claim": "agents",
        "sub_path": "a1/workspace",
        "mount_path": "/sandbox/enterprise",
        "read_only": False,
    }
    return WorkspaceMount(**{**values, **changes})


CLAIM = (
    mount(claim="pvc-a1", sub_path="workspace"),
    mount(claim="pvc-a1", sub_path="state", mount_path="/sandbox/state", read_only=True),
)


PREPARED = {
    "workspace_mounts": (
        mount(claim="pvc-a1", sub_path="workspace", mount_path="/home/node/workspace"),
        mount(claim="pvc-a1", sub_path="codex", mount_path="/home/node/.codex"),
    ),
    "workspace_setup": WorkspaceSetup(
        id="wss_1", defaults_id="d1", secret_name="s", secret_key="setup.json"
    ),
    "native_hook_directory": native_hook_directory(HARNESS_HOME),
}
"""Everything that prepares a Harness's home: relocated mounts, initial files, a native hook directory."""


@pytest.mark.parametrize(
    ("name", "settings", "changes"),
    [
        ("local", LOCAL, {}),
        ("kubernetes", KUBERNETES, {"workspace_mounts": CLAIM}),
        ("prepared", KUBERNETES, PREPARED),
    ],
)
def test_g08_the_create_request_is_golden(name, settings, changes):
    """These bytes are version 1 for ever: a Sandbox that runs is recognised by them. Another rule is another version."""
    rendering = render("box", parse_settings(settings), context(**changes))
    document = {
        "create": rendering.create_request("ID"),
        "provider": {
            "name": rendering.provider,
            "labels": rendering.provider_labels,
            "config": rendering.provider_config,
        },
        "profile": rendering.profile.document,
    }
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    assert text == (GOLDEN / f"{name}.json").read_text()


def test_g08_equal_inputs_render_equally_and_adopt_themselves():
    settings = parse_settings(LOCAL)
    one, two = render("box", settings, context()), render("box", settings, context())
    assert one == two
    echo = records.SandboxRecord(
        meta=records.Meta(
            id="x",
            name=one.sandbox,
            workspace=one.workspace,
            labels=one.labels,
            annotations={**one.annotations, "internal.openshell.ai/a": "b"},
            resource_version=1,
        ),
        spec={**canonical_spec(one.spec), "provider_attachment_epoch": "e"},
        phase="SANDBOX_PHASE_READY",
        exit_code=None,
        restart_count=0,
        reason="",
    )
    assert adoption.sandbox_difference(one, echo) is None
    assert adoption.sandbox_difference(one, replace(echo, spec={})) == "spec.command"


def test_paths_of_the_image_home_move_and_nothing_else():
    environment = (
        *requirements().environment,
        EnvironmentLiteral(name="A", value="/home/node"),
        EnvironmentLiteral(name="B", value="/home/nodes/x"),
        EnvironmentLiteral(name="HOME", value="/elsewhere"),
        EnvironmentLiteral(
            name="OPENCLAW_NODE_CA_PEM", value=PEM + "-----BEGIN PRIVATE KEY-----\nx\n"
        ),
    )
    rendering = render("box", parse_settings(LOCAL), context(environment=environment))
    found = rendering.spec["environment"]
    assert found["A"] == "/sandbox/.openclaw-runtime/home"
    assert found["CODEX_HOME"] == "/sandbox/.openclaw-runtime/home/.codex"
    assert found["B"] == "/home/nodes/x"
    assert found["HOME"] == "/sandbox/.openclaw-runtime/home"
    assert "OPENCLAW_NODE_CA_PEM" not in found
    assert rendering.provider_config["node_ca_pem"] == PEM


@pytest.mark.parametrize(
    "mounts",
    [
        (),
        (mount(claim="other"),),
        (mount(), mount()),
        (mount(), mount(mount_path="/sandbox/enterprise/x")),
        (
            mount(),
            mount(mount_path="/sandbox/enterprise-x"),
            mount(mount_path="/sandbox/enterprise-x/y"),
        ),
        (mount(), mount(mount_path="/data")),
        (mount(), mount(mount_path="/sandbox/../etc")),
        (mount(sub_path=""),),
        (mount(sub_path="a/../b"),),
        (mount(sub_path="/a"),),
    ],
)
def test_a_mount_that_is_not_exactly_approved_is_refused(mounts):
    with pytest.raises(RevisionUnsupported):
        render("box", parse_settings(LOCAL), context(workspace_mounts=mounts))


@pytest.mark.parametrize(
    "mounts",
    [
        (mount(claim="c", sub_path="other"),),
        (mount(claim="c", sub_path="workspace", read_only=True),),
        (
            mount(claim="c", sub_path="workspace"),
            mount(claim="d", sub_path="workspace", mount_path="/sandbox/x"),
        ),
        (
            mount(claim="c", sub_path="workspace"),
            mount(claim="c", sub_path="h", mount_path="/sandbox/.openclaw-runtime/home"),
        ),
    ],
)
def test_the_kubernetes_data_mount_matches_exactly_one(mounts):
    with pytest.raises(RevisionUnsupported):
        render("box", parse_settings(KUBERNETES), context(workspace_mounts=mounts))


def test_a_secret_environment_is_refused_before_everything_else():
    entry = EnvironmentSecret(name="X", secret_name="s", secret_key="k")
    with pytest.raises(RevisionUnsupported) as refused:
        render("box", parse_settings(LOCAL), context(environment=(entry,)))
    assert refused.value.code == "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED"


@given(st.text(max_size=20), st.text(max_size=40))
def test_any_environment_renders_or_is_refused_but_never_leaks_a_reserved_name(name, value):
    environment = (*requirements().environment, EnvironmentLiteral(name=name, value=value))
    try:
        rendering = render("box", parse_settings(LOCAL), context(environment=environment))
    except DriverRefusal:
        return
    canonical_spec(rendering.spec)
    assert not any(key.upper().startswith("OPENSHELL_") for key in rendering.spec["environment"])
    assert rendering.spec["environment"]["HOME"] == "/sandbox/.openclaw-runtime/home"


def test_an_admitted_snapshot_outlives_the_startup_defaults():
    def snapshot_of(settings):
        found = admit(
            "box", settings.network_rules, additions=[], version=1, defaults=None, scope=None
        )
        return {
            "driver_id": found.driver_id,
            "version": found.version,
            "defaults": found.defaults,
            "additions": found.additions,
        }

    then = parse_settings({**LOCAL, "policy": {"networkPolicies": [RULE]}})
    revision = a_revision(network_policy=json.loads(json.dumps(snapshot_of(then))))
    now = parse_settings(LOCAL)
    policies = render("box", now, context(revision)).spec["policy"]["network_policies"]
    assert policies == render("box", then, context()).spec["policy"]["network_policies"]
    assert list(policies) == ["source-control"]


def test_the_profiles_have_stable_ids_and_marks():
    runtime = profiles.codex_runtime()
    assert runtime.document["annotations"] == {"openclaw.dev/managed-by": runtime.mark}
    assert next(f["content"] for f in runtime.document["files"]) == "{{config.runtime_json}}"
    default = profiles.openai("https://api.openai.com/v1", "authorization", ["/b"])
    custom = profiles.openai("https://m.example:8443/x", "authorization", ["/b"])
    header = profiles.openai("https://m.example:8443/x", "x-api-key", ["/b"])
    assert default.id == "oce-openai"
    assert len({default.id, custom.id, header.id}) == 3
    assert custom.document["endpoints"][0]["path"] == "/x/**"
    assert custom.document["endpoints"][0]["ports"] == [8443]
    assert header.document["credentials"][0]["header_name"] == "x-api-key"
    assert (
        profiles.openai("https://api.openai.com/v1", "authorization", ["/c"]).mark != default.mark
    )


def test_the_revision_id_is_in_no_name():
    rendering = render("box", parse_settings(LOCAL), context())
    assert len(rendering.sandbox) == 19
    assert REVISION_ID not in rendering.sandbox


def test_a_mount_of_the_images_home_is_relocated_and_linked_into_the_harness_home(tmp_path):
    mounts = (
        mount(claim="pvc-a1", sub_path="workspace", mount_path="/home/node/workspace"),
        mount(claim="pvc-a1", sub_path="codex", mount_path="/home/node/.codex"),
    )
    environment = (
        *requirements().environment,
        EnvironmentLiteral(name="A", value="/home/node/.codex"),
        EnvironmentLiteral(name="B", value="/home/node/workspace/notes"),
    )
    rendering = render(
        "box",
        parse_settings(KUBERNETES),
        context(workspace_mounts=mounts, environment=environment),
    )
    spec = rendering.spec
    volumes = spec["template"]["driver_config"]["kubernetes"]["containers"]["agent"]
    paths = [m["mount_path"] for m in volumes["volume_mounts"]]
    assert paths[0] == "/sandbox/enterprise"
    assert re.fullmatch(r"/sandbox/\.openclaw-mounts/[0-9a-f]{16}", paths[1])
    home = "/sandbox/.openclaw-runtime/home"
    command = spec["command"]
    assert command[:4] == ["/usr/bin/python3", "-I", "-S", "-c"]
    assert command[5:10] == ["2", paths[0], f"{home}/workspace", paths[1], f"{home}/.codex"]
    assert command[10:] == ["0", *requirements().command]
    assert all(len(argument.encode()) < 32_768 for argument in command)
    assert paths[1] in spec["policy"]["filesystem"]["read_write"]
    assert spec["environment"]["A"] == f"{paths[1]}/state"
    assert spec["environment"]["B"] == f"{home}/workspace/notes"
    with pytest.raises(RevisionUnsupported):
        render(
            "box",
            parse_settings(KUBERNETES),
            context(workspace_mounts=(*mounts[:1], mount(mount_path="/home/node/../x"))),
        )
    home_inside, target = tmp_path / "home", tmp_path / "mount"
    target.mkdir()
    hooks = home_inside / ".oce-native-hooks"
    inner = ["1", str(target), str(home_inside / ".codex"), "1", str(hooks)]
    run = [sys.executable, *command[1:5], *inner, "/bin/sh", "-c", "ls -A"]
    for _ in range(2):
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["home", "mount"]
        assert stat.S_IMODE(hooks.stat().st_mode) == 0o700
        hooks.chmod(0o755)  # an earlier Harness, or a person, opened it
    assert (home_inside / ".codex").readlink() == target
    hooks.rmdir()
    hooks.symlink_to(target)
    assert subprocess.run(run, capture_output=True, check=False).returncode == 78
    hooks.unlink()
    (home_inside / ".codex").unlink()
    (home_inside / ".codex").mkdir()
    assert subprocess.run(run, capture_output=True, check=False).returncode == 78


def test_native_openclaw_is_golden():
    revision = a_revision(harness=Harness(id="openclaw", version="2026.1", mode="dedicated"))
    wanted = native_requirements(workspace_mounts=CLAIM)
    rendering = render(
        "box",
        parse_settings(KUBERNETES),
        HarnessContext(namespace=a_namespace(), revision=revision, requirements=wanted),
    ).enrolling(from_code(SecretText(setup_code())))
    document = {
        "create": rendering.create_request("ID"),
        "provider": {
            "name": rendering.provider,
            "labels": rendering.provider_labels,
            "config": rendering.provider_config,
        },
        "profile": rendering.profile.document,
    }
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    assert SETUP_TOKEN not in repr(rendering) + text
    assert text == (GOLDEN / "native.json").read_text()


@pytest.mark.parametrize(
    "path",
    [
        "/sandbox/enterprise/.oce-native-hooks",
        "/sandbox/.openclaw-runtime/.oce-native-hooks",
        "/home/node/.oce-native-hooks",
        f"{HARNESS_HOME}/../.oce-native-hooks",
        f"{HARNESS_HOME}/./hooks",
        f"{HARNESS_HOME}//hooks",
        HARNESS_HOME,
        f"{HARNESS_HOME}/.codex",
        f"{HARNESS_HOME}/workspace/hooks",
    ],
)
def test_a_native_hook_directory_lies_in_the_home_and_in_nothing_that_travels(path):
    with pytest.raises(RevisionUnsupported, match="native hook directory"):
        render(
            "box",
            parse_settings(KUBERNETES),
            context(**{**PREPARED, "native_hook_directory": path}),
        )


def test_a_native_hook_directory_holds_no_mount():
    hooks = native_hook_directory(HARNESS_HOME)
    inside = hooks.replace(HARNESS_HOME, "/home/node") + "/state"
    claim = mount(claim="pvc-a1", sub_path="state", mount_path=inside)
    mounts = (*PREPARED["workspace_mounts"], claim)
    with pytest.raises(RevisionUnsupported, match="meets a workspace mount"):
        render(
            "box",
            parse_settings(KUBERNETES),
            context(workspace_mounts=mounts, native_hook_directory=hooks),
        )


def test_native_openclaw_has_no_native_hooks():
    revision = a_revision(harness=Harness(id="openclaw", version="2026.1", mode="dedicated"))
    wanted = native_requirements(
        workspace_mounts=CLAIM, native_hook_directory=native_hook_directory(HARNESS_HOME)
    )
    given = HarnessContext(namespace=a_namespace(), revision=revision, requirements=wanted)
    with pytest.raises(RevisionUnsupported, match="native hook directory"):
        render("box", parse_settings(KUBERNETES), given)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("/opt/oce/python/bin/python3", "-I"), "/opt/oce/python/bin/python3"),
        (("/usr/bin/python3.11",), "/usr/bin/python3.11"),
        (("/usr/local/bin/node", "x.js"), "/usr/bin/python3"),
        (("python3",), "/usr/bin/python3"),
        ((), "/usr/bin/python3"),
    ],
)
def test_the_drivers_own_programs_run_on_the_harnesss_python(command, found):
    assert interpreter(command) == found
