"""Spec to launch, policies to rules, decisions to lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from openshell._proto import openshell_pb2 as pb
from openshell._proto import sandbox_pb2

from oce.policy.model import Access, Enforcement, Protocol, Tls
from oce.sandboxd.config import parse_config
from oce.sandboxd.egress.model import Decision
from oce.sandboxd.lifecycle import policies, rendering
from oce.sandboxd.lifecycle.logs import decision_fields, decision_text
from oce.sandboxd.lifecycle.providers import ProviderView, bindings, effective_policy
from oce.sandboxd.state.refusals import Refusal

CONFIG = parse_config({"gateway": {"state_dir": "/var/lib/sandboxd"}})


def launch(spec, policy=None, views=()):
    return rendering.launch_of(
        sandbox_id="id",
        instance_id="run",
        spec=spec,
        policy=policy or policies.default_policy(),
        views=views,
        config=CONFIG,
        workspace=Path("/w"),
        provider_files=Path("/p"),
        shown={"/usr": "/usr", "/bin": "/bin"},
        roots=b"ROOTS\n",
        ca=b"CA\n",
    )


def view(**profile):
    return ProviderView(
        id="uuid",
        name="key",
        version=1,
        profile_version=1,
        credentials=("api_key",),
        config={},
        profile=pb.ProviderProfile(id="p", **profile),
    )


def test_the_environment_starts_empty_and_the_spec_cannot_forge_ours(monkeypatch):
    monkeypatch.setenv("DEMO_CLOUD_TOKEN", "s3cr3t-aaa")
    found = launch(
        pb.SandboxSpec(
            environment={"A": "spec", "SSL_CERT_FILE": "/mine", "HOME": "/sandbox/h"},
            template=pb.SandboxTemplate(environment={"A": "template", "B": "template"}),
        )
    )
    assert found.environment == {
        "OPENSHELL_SANDBOX": "1",
        "HOME": "/sandbox/h",
        "USER": "sandbox",
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "A": "spec",
        "B": "template",
        **dict.fromkeys(
            (
                "SSL_CERT_FILE",
                "REQUESTS_CA_BUNDLE",
                "CURL_CA_BUNDLE",
                "GIT_SSL_CAINFO",
                "CODEX_CA_CERTIFICATE",
                "NODE_EXTRA_CA_CERTS",
                "DENO_CERT",
            ),
            "/etc/openshell-tls/ca-bundle.pem",
        ),
    }
    assert found.files[0].content == b"ROOTS\nCA\n"
    assert [(str(m.source), m.target, m.read_only) for m in found.mounts] == [
        ("/p", "/run/openshell/providers", True),
        ("/w", "/sandbox", False),
    ]


def test_file_policies():
    assert launch(pb.SandboxSpec()).read_write_paths == ()
    own = sandbox_pb2.SandboxPolicy(
        version=1,
        filesystem={"include_workdir": True, "read_only": ["/usr"], "read_write": ["/tmp"]},
    )
    found = launch(pb.SandboxSpec(), own)
    assert (found.read_only_paths, found.read_write_paths) == (("/usr",), ("/tmp", "/sandbox"))
    own.filesystem.read_only.extend(["/usr/no-such-folder", "/app", "/etc", "/bin"])
    assert launch(pb.SandboxSpec(), own).read_only_paths == ("/usr", "/etc", "/bin")
    own.landlock.compatibility = "hard_requirement"
    assert "/app" in launch(pb.SandboxSpec(), own).read_only_paths
    own.filesystem.include_workdir = False
    del own.filesystem.read_write[:]
    assert launch(pb.SandboxSpec(), own).read_write_paths == ("/dev/null",)


def test_a_provider_layer_and_its_bindings():
    found = view(
        credentials=[{"name": "api_key", "env_vars": ["OPENAI_API_KEY", "ALSO"]}],
        endpoints=[
            {
                "host": "API.openai.com",
                "ports": [443, 8443],
                "protocol": "rest",
                "access": 2,
                "path": "/v1/**",
            }
        ],
    )
    effective = effective_policy(policies.default_policy(), [found])
    (rule,) = policies.network_policy(effective).rules
    assert rule.key == "_provider_key"
    assert rule.binaries == ("/**",)
    assert rule.endpoints[0].ports == (443, 8443)
    made = bindings(policies.default_policy(), [found])
    assert [item.placeholder for item in made] == [
        "openshell:resolve:env:OPENAI_API_KEY",
        "openshell:resolve:env:ALSO",
    ]
    assert {(e.host, e.port) for e in made[0].endpoints} == {
        ("api.openai.com", 443),
        ("api.openai.com", 8443),
    }
    assert made[0].provider_id == "uuid.api_key"


def test_an_endpointless_profile_binds_only_where_the_policy_names_it():
    found = view(credentials=[{"name": "api_key", "env_vars": ["KEY"]}])
    policy = policies.default_policy()
    assert bindings(policy, [found]) == ()
    endpoint = policy.network_policies["a"].endpoints.add(host="a.example", port=443)
    endpoint.credential_binding.provider = "key"
    (made,) = bindings(policy, [found])
    assert made.endpoints[0].host == "a.example"


def test_endpoints_convert_with_the_wire_s_defaults():
    policy = policies.default_policy()
    rule = policy.network_policies["a"]
    rule.binaries.add(path="/usr/bin/curl")
    rule.endpoints.add(host="a.example", port=443, tls=1)
    rule.endpoints.add(host="b.example", port=443, protocol="rest", enforcement=1, access=3)
    one, two = policies.network_policy(policy).rules[0].endpoints
    assert (one.protocol, one.tls, one.enforcement) == (
        Protocol.TCP,
        Tls.SKIP,
        Enforcement.AUDIT,
    )
    assert (two.tls, two.enforcement, two.access) == (Tls.AUTO, Enforcement.ENFORCE, Access.FULL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", "mcp"),
        ("tls", 2),
        ("credential_signing", "sigv4"),
        ("websocket_credential_rewrite", True),
        ("persisted_queries", "deny"),
    ],
)
def test_what_would_not_be_enforced_is_refused_by_name(field, value):
    policy = policies.default_policy()
    endpoint = policy.network_policies["a"].endpoints.add(host="a.example", port=443)
    setattr(endpoint, field, value)
    with pytest.raises(Refusal, match=field):
        policies.network_policy(policy)


def test_decision_lines():
    denied = Decision(
        sandbox_id="id",
        time=1.0,
        allowed=False,
        activity="NET:OPEN",
        host="example.com",
        port=443,
        binary="/usr/bin/curl",
        pid=64,
        rule="-",
        reason="endpoint example.com:443 is not allowed by any policy",
    )
    assert decision_text(denied) == (
        "NET:OPEN [MED] DENIED /usr/bin/curl(64) -> example.com:443 [policy:- engine:opa]"
        " [reason:endpoint example.com:443 is not allowed by any policy]"
    )
    allowed = Decision(
        sandbox_id="id",
        time=1.0,
        allowed=True,
        activity="HTTP:POST",
        host="api.openai.com",
        port=443,
        binary="/opt/oce/codex/codex",
        pid=71,
        rule="_provider_openai",
        reason="",
        method="POST",
        path="/v1/responses?key=s3cr3t-ccc",
    )
    assert decision_text(allowed) == (
        "HTTP:POST [INFO] ALLOWED /opt/oce/codex/codex(71) -> POST api.openai.com:443/v1/responses"
        " [policy:_provider_openai engine:opa]"
    )
    assert "s3cr3t-ccc" not in str(decision_fields(allowed))
