"""Golden rendering of a Codex Harness, and the held failure document."""

import dataclasses
import json
import tomllib

import pytest

from oce.contracts.refusals import RevisionUnsupported
from oce.domain.secret import SecretText
from oce.drivers.local.held import runtime_failure
from oce.drivers.local.rendering import CodexModel, codex_config, codex_model, requirements

TOKEN = SecretText("raw-transport-token")


def render(revision, settings, sources=()):
    return requirements(
        revision,
        settings=settings,
        harness_home="/sandbox/.home",
        token=TOKEN,
        sources=sources,
        attachments=(),
    )


def test_requirements_golden(revision, settings):
    found = render(revision, settings)
    environment = {entry.name: entry.value for entry in found.environment}
    digest = environment.pop("APP_TOKEN_SHA")
    assert len(digest) == 64
    assert environment == {
        "APP_SERVER_PORT": "18790",
        "CODEX_BINARY": "/opt/oce/codex/bin/codex",
        "CODEX_HOME": "/sandbox/.home/.codex",
        "CODEX_LOGIN_MODE": "api_key",
        "LOG_FORMAT": "json",
        "OCE_CODEX_SESSIONS_DIR": "/sandbox/.openclaw-sessions",
        "OPENCLAW_HARNESS_MODEL": "gpt-test",
        "OPENCLAW_WORKSPACE_DIR": "/sandbox/enterprise",
        "RUST_LOG": "info,codex_otel=off,codex_app_server_transport::transport::remote_control=off",
    }
    assert [(m.claim, m.sub_path, m.mount_path, m.read_only) for m in found.workspace_mounts] == [
        ("agents", f"{revision.agent_id}/workspace", "/sandbox/enterprise", False),
        ("agents", f"{revision.agent_id}/codex-sessions", "/sandbox/.openclaw-sessions", False),
    ]
    assert found.labels == {
        "app.kubernetes.io/managed-by": "openclaw-enterprise",
        "openclaw.dev/namespace": revision.namespace_id,
        "openclaw.dev/agent": revision.agent_id,
        "openclaw.dev/revision": revision.id,
        "openclaw.dev/network-profile": "provider-fenced-v1",
    }
    manifest, config = found.files
    assert (manifest.name, manifest.environment_variable) == (
        "runtime.json",
        "OPENCLAW_PLUGIN_RUNTIME_MANIFEST",
    )
    assert json.loads(manifest.content) == {"kind": "codex", "selections": []}
    assert tomllib.loads(config.content) == {
        "model": "gpt-test",
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "cli_auth_credentials_store": "file",
        "features": {"plugins": False, "apps": False, "api_key_model_discovery": False},
        "analytics": {"enabled": False},
    }
    assert render(revision, settings) == found
    assert TOKEN.reveal() not in repr(found)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"agents": {"defaults": {"model": {"primary": "openai/o"}}}},
            CodexModel(model="o", base_url=None),
        ),
        (
            {
                "agents": {"defaults": {"model": "m"}},
                "models": {"providers": {"openai": {"baseUrl": "https://llm.test/v1"}}},
            },
            CodexModel(model="m", base_url="https://llm.test/v1"),
        ),
        (
            {
                "agents": {"defaults": {"model": "m"}},
                "models": {"providers": {"openai": {"baseUrl": "https://api.openai.com/v1"}}},
            },
            CodexModel(model="m", base_url=None),
        ),
    ],
)
def test_model_is_read_from_the_native_document(document, expected):
    assert codex_model(document, ()) == expected


@pytest.mark.parametrize("document", [{}, {"agents": {"defaults": {"model": ""}}}, {"agents": []}])
def test_a_document_without_a_model_is_refused(revision, settings, document):
    with pytest.raises(RevisionUnsupported):
        render(dataclasses.replace(revision, configuration=document), settings)


@pytest.mark.parametrize("model", ['quo"te\\', "line\nbreak", "\x7f", "snow ☃ 😀"])
def test_toml_keeps_every_character(model):
    text = codex_config(CodexModel(model=model, base_url=model))
    assert tomllib.loads(text)["model"] == tomllib.loads(text)["openai_base_url"] == model


def held(**changes):
    failure = {
        "component": "agent",
        "check": "model-probe",
        "checkedAt": "2026-01-02T03:04:05.678Z",
        "code": "MODEL_PROBE_FAILED",
    }
    return {**failure, **changes}


def test_held_failure_with_a_known_cause_is_kept_and_an_unknown_cause_is_dropped():
    found = runtime_failure(held(cause={"kind": "PROCESS_EXIT", "detail": "exit-1"}))
    assert (found.code, found.cause_kind, found.cause_detail) == (
        "MODEL_PROBE_FAILED",
        "PROCESS_EXIT",
        "exit-1",
    )
    for cause in ({"kind": "HACKED"}, {"kind": "PROBE_STATUS", "detail": "rm -rf"}, "text"):
        assert runtime_failure(held(cause=cause)).cause_kind is None
    assert (
        runtime_failure(
            held(code="AUTHENTICATION_FAILED", cause={"kind": "INVALID_OUTPUT"})
        ).cause_kind
        is None
    )


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"runtimeFailure": held()},
        held(extra=1),
        held(component="gateway"),
        held(check="other"),
        held(checkedAt="yesterday"),
        held(checkedAt="2026-13-02T03:04:05Z"),
        held(code="UNKNOWN_CODE"),
        held(code=7),
    ],
)
def test_a_malformed_held_failure_counts_as_still_starting(document):
    assert runtime_failure(document) is None


def test_a_revision_of_a_later_program_is_refused_by_name(revision, settings):
    later = dataclasses.replace(revision, compute_render_version=2)
    with pytest.raises(RevisionUnsupported) as refused:
        render(later, settings)
    assert refused.value.code == "COMPUTE_DRIVER_MISMATCH"
