"""Startup refuses what it must, by path and without the value (reference/sandbox-openshell.md §3, §4, §22.2, §22.3)."""

from __future__ import annotations

import copy
import json

import pytest

from oce.contracts.refusals import ConfigurationRefused, NetworkPolicyConflict, RevisionUnsupported
from oce.contracts.sandbox import PolicyScope
from oce.domain.resources import Harness
from oce.drivers.openshell.agent_configuration import configure_agent
from oce.drivers.openshell.backend import parse_backend
from oce.drivers.openshell.credentials import parse_gateway_settings
from oce.drivers.openshell.network_rules import addition_host_problem
from oce.drivers.openshell.policies import admit
from oce.drivers.openshell.settings import LocalPlace, parse_settings

RULE = {
    "name": "web",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [
        {"host": "api.example.com", "ports": [443], "protocol": "rest", "access": "read_only"}
    ],
}
KUBERNETES = {
    "gateway": {"workspaceMode": "operator", "operatorNamespaceLabels": {"a": "b"}},
    "kubernetes": {
        "runtimeClassName": "rc",
        "serviceAccount": {"mode": "gatewayConfigured"},
        "sandboxDataMount": {"subPath": "w", "mountPath": "/sandbox/enterprise", "readOnly": False},
    },
    "policy": {"process": {"runAsUser": "1000", "runAsGroup": "1000"}, "networkPolicies": [RULE]},
}
SECRET = "s3cr3t-value"


def changed(path, value):
    document = copy.deepcopy(KUBERNETES)
    *parents, last = path
    node = document
    for key in parents:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return document


ENDPOINT = ("policy", "networkPolicies", 0, "endpoints", 0)
MOUNT = ("kubernetes", "sandboxDataMount")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("other",), SECRET),
        (("gateway",), None),
        (("kubernetes",), None),
        (("policy",), None),
        (("gateway", "endpoint"), SECRET),
        (("gateway", "auth"), SECRET),
        (("gateway", "requestTimeoutMs"), 1),
        (("gateway", "rootCertificatePath"), SECRET),
        (("gateway", "readiness"), {"serviceName": SECRET}),
        (("gateway", "workspaceMode"), SECRET),
        (("gateway", "operatorNamespaceLabels"), {}),
        (
            ("gateway", "operatorWorkspaceResources"),
            [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}],
        ),
        (
            ("gateway", "operatorWorkspaceResources"),
            [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SECRET}}],
        ),
        (
            ("gateway", "networkPolicyResources"),
            [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}],
        ),
        (
            ("gateway", "networkPolicyResources"),
            [
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRole",
                    "metadata": {"name": "x"},
                }
            ],
        ),
        (("kubernetes", "serviceAccount", "mode"), "projected"),
        ((*MOUNT, "subPath"), "."),
        ((*MOUNT, "subPath"), "/"),
        ((*MOUNT, "subPath"), "a/../b"),
        ((*MOUNT, "subPath"), "/abs"),
        ((*MOUNT, "mountPath"), "/data"),
        ((*MOUNT, "mountPath"), "/sandbox/"),
        ((*MOUNT, "mountPath"), "/sandbox/.openclaw-runtime/x"),
        ((*MOUNT, "readOnly"), None),
        (("policy", "landlockCompatibility"), "best_effort"),
        (("policy", "process", "runAsUser"), "0"),
        (("policy", "process", "runAsUser"), "root"),
        (("policy", "networkPolicies"), []),
        (("policy", "networkPolicies"), [RULE, RULE]),
        (("policy", "networkPolicies", 0, "binaries"), []),
        (("policy", "networkPolicies", 0, "binaries"), [{"path": ""}]),
        (("policy", "networkPolicies", 0, "endpoints"), []),
        (("policy", "networkPolicies", 0, "name"), "_provider_x"),
        (("policy", "networkPolicies", 0, "name"), "workspace-node-enrollment"),
        ((*ENDPOINT, "ports"), [0]),
        ((*ENDPOINT, "ports"), [True]),
        ((*ENDPOINT, "host"), "*"),
        ((*ENDPOINT, "tls"), "passthrough"),
        ((*ENDPOINT, "tls"), "terminate"),
        ((*ENDPOINT, "tls"), "constructor"),
        ((*ENDPOINT, "access"), "__proto__"),
        ((*ENDPOINT, "access"), "keys"),
        ((*ENDPOINT, "enforcement"), "toString"),
        ((*ENDPOINT, "protocol"), "graphql"),
        (("sandboxNamePrefix",), "abc"),
        (("startupDelayMs",), 0),
        (("startupDelayMs",), 120_001),
        (("providers",), ["oce-cs-0123456789abcdef01234567"]),
        (("providers",), [""]),
        (("local",), {}),
    ],
)
def test_g02_the_driver_block_is_closed_and_never_repeats_a_value(path, value):
    with pytest.raises(ConfigurationRefused) as refused:
        parse_settings(changed(path, value), path="/drivers/sandbox/configuration")
    assert refused.value.details[0].path.startswith("/drivers/sandbox/configuration")
    assert SECRET not in str(refused.value)


def test_both_places_parse():
    assert parse_settings(KUBERNETES).data_mount_path == "/sandbox/enterprise"
    local = parse_settings({"local": {}})
    assert local.place == LocalPlace(
        mount_source="agents", data_mount="/sandbox/enterprise", limits={}
    )
    assert local.network_rules == ()
    for bad in (
        {"local": {}, "gateway": {}},
        {"local": {}, "endpoint": "x"},
        {"local": {"runtimeClassName": "x"}},
        {"local": {"dataMount": "/data"}},
        {"local": {}, "policy": {"filesystem": {"includeWorkdir": False}}},
        {},
        [],
        None,
    ):
        with pytest.raises(ConfigurationRefused):
            parse_settings(bad)


BEARER = {"mode": "bearerTokenFile", "path": "/etc/token"}
OPEN = {"mode": "unauthenticated"}
DRIVERS = {"sandbox": "box", "credential_gateway": "keys"}
ACK = {"insecureTransport": "network-policy"}


@pytest.mark.parametrize(
    ("configuration", "authority", "tls"),
    [
        ({"endpoint": "https://h.example", "auth": BEARER}, "h.example:443", True),
        ({"endpoint": "https://h.example:8443/", "auth": BEARER}, "h.example:8443", True),
        ({"endpoint": "http://h.example", "auth": OPEN, **ACK}, "h.example:80", False),
        ({"endpoint": "127.0.0.1:17670", "auth": OPEN, **ACK}, "127.0.0.1:17670", False),
        ({"endpoint": "[::1]:1", "auth": BEARER, "rootCertificatePath": "/ca"}, "[::1]:1", True),
        ({"serviceName": "gw", "auth": OPEN, **ACK}, "gw.ns.svc:8080", False),
        (
            {
                "serviceName": "gw.x",
                "scheme": "https",
                "rootCertificatePath": "/ca",
                "auth": BEARER,
            },
            "gw.x:8080",
            True,
        ),
    ],
)
def test_backend_endpoints(configuration, authority, tls):
    backend = parse_backend(configuration, DRIVERS, control_namespace="ns")
    assert (backend.authority, backend.tls) == (authority, tls)
    assert backend.request_timeout_ms == 10_000


@pytest.mark.parametrize(
    "configuration",
    [
        {"endpoint": "https://h", "auth": BEARER, **ACK},
        {"endpoint": "https://h", "auth": OPEN},
        {"endpoint": "http://h", "auth": BEARER},
        {"endpoint": "https://u:p@h", "auth": BEARER},
        {"endpoint": "https://h/x", "auth": BEARER},
        {"endpoint": "https://h?q", "auth": BEARER},
        {"endpoint": "https://h#f", "auth": BEARER},
        {"endpoint": "ftp://h", "auth": BEARER},
        {"endpoint": "h", "auth": OPEN, **ACK},
        {"endpoint": "h:0", "auth": OPEN, **ACK},
        {"endpoint": "h:65536", "auth": OPEN, **ACK},
        {"endpoint": "[::g]:1", "auth": OPEN, **ACK},
        {"endpoint": "https://h", "serviceName": "g", "auth": BEARER},
        {"auth": BEARER},
        {"serviceName": "g", "scheme": "https", "auth": BEARER},
        {"endpoint": "https://h", "auth": {"mode": "bearerTokenFile", "path": "relative"}},
        {"endpoint": "https://h", "auth": {"mode": "bearerTokenFile"}},
        {"endpoint": "https://h", "auth": {"mode": "mtls"}},
        {"endpoint": "https://h", "auth": BEARER, "requestTimeoutMs": 999},
        {"endpoint": "https://h", "auth": BEARER, "requestTimeoutMs": 30_001},
        {"endpoint": "http://h", "auth": OPEN, "rootCertificatePath": "/ca", **ACK},
        {"endpoint": "https://h", "auth": BEARER, "operatorTls": {}},
        {"endpoint": "https://h", "auth": BEARER, "unknown": 1},
        {"endpoint": "http://h", "auth": OPEN, "insecureTransport": "yes"},
    ],
)
def test_g03_backend_refusals(configuration):
    with pytest.raises(ConfigurationRefused):
        parse_backend(configuration, DRIVERS)


def test_g22_the_credential_gateway_block():
    assert parse_gateway_settings({"binaries": ["/b/c"]}).binaries == ("/b/c",)
    for bad in (
        {},
        {"binaries": []},
        {"binaries": ["b"]},
        {"binaries": ["/b"], "toolBinaries": []},
    ):
        with pytest.raises(ConfigurationRefused):
            parse_gateway_settings(bad)


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("api.example.com", True),
        ("*.example.com", True),
        ("**.example.co.uk", True),
        ("*.com", False),
        ("*.co.uk", False),
        ("*.github.io", False),
        ("*.team.github.io", True),
        ("*.kawasaki.jp", False),
        ("*.s3.amazonaws.com", False),
        ("*.amazonaws.com", True),
        ("**.amazonaws.com", False),
        ("*evil.com", False),
        ("*.xn--p1ai", False),
        ("*.unheard-of", False),
        ("127.1", False),
        ("0x7f.1", False),
        ("1.2.3.0x4", False),
        ("3.example.com", True),
        ("*", False),
        ("api.*.com", False),
        ("a.*.example.com", False),
        ("10.0.0.1", False),
        ("::1", False),
        ("localhost", False),
        ("intranet", False),
        ("gw.default.svc", False),
        ("gw.default.svc.cluster.local", False),
        ("db.internal", False),
    ],
)
def test_hosts_that_an_agent_may_add(host, fine):
    assert (addition_host_problem(host) is None) is fine


def test_additions_are_admitted_against_the_defaults():
    defaults = parse_settings({"local": {}, "policy": {"networkPolicies": [RULE]}}).network_rules

    def ask(additions, **scope):
        return admit(
            "box",
            defaults,
            additions=additions,
            version=3,
            defaults=None,
            scope=PolicyScope(**scope),
        )

    other = {**RULE, "name": "extra", "endpoints": [{"host": "*.github.com", "ports": [443]}]}
    found = ask([other])
    assert (found.driver_id, found.version) == ("box", 3)
    assert json.loads(json.dumps(found.additions)) == found.additions
    again = admit(
        "box", (), additions=found.additions, version=4, defaults=found.defaults, scope=None
    )
    assert (again.defaults, again.additions) == (found.defaults, found.additions)
    with pytest.raises(NetworkPolicyConflict) as refused:
        ask([other], repository_credentials=True)
    assert refused.value.rule == "extra"
    uninspected = {
        **RULE,
        "name": "raw",
        "endpoints": [{"host": "api.example.com", "ports": [443], "tls": "skip"}],
    }
    for bad in (
        [RULE],
        [{**other, "name": "workspace-node-enrollment"}],
        [uninspected],
        {},
        [other] * 2,
    ):
        with pytest.raises(ConfigurationRefused):
            ask(bad)


W = "/sandbox/enterprise"


def test_configure_agent_changes_only_the_inner_sandbox():
    harness = Harness(id="codex", version="1", mode="dedicated")
    given = {
        "plugins": {"entries": {"codex": {"config": {"appServer": {"sandbox": "x", "k": 1}}}}},
        "o": [1],
    }
    before = copy.deepcopy(given)
    found = configure_agent(given, harness, W)
    assert given == before
    codex = found["plugins"]["entries"]["codex"]
    assert codex["enabled"] is True
    assert codex["config"]["appServer"] == {
        "sandbox": "danger-full-access",
        "approvalsReviewer": "user",
        "k": 1,
    }
    assert configure_agent(found, harness, W) == found
    with pytest.raises(ConfigurationRefused):
        configure_agent({"plugins": {"entries": []}}, harness, W)
    for other in (
        Harness(id="openclaw", version="1", mode="embedded"),
        Harness(id="codex", version="1", mode="embedded"),
    ):
        with pytest.raises(RevisionUnsupported):
            configure_agent({}, other, W)


def test_configure_agent_pins_the_workspace_of_native_openclaw():
    harness = Harness(id="openclaw", version="1", mode="dedicated")
    given = {
        "agents": {
            "defaults": {"model": "m", "workspace": "/home/x"},
            "entries": {"Main": {"workspace": "/elsewhere", "k": 1}, "other": {"workspace": "/o"}},
        }
    }
    before = copy.deepcopy(given)
    found = configure_agent(given, harness, W)
    assert given == before
    assert found["agents"]["defaults"] == {"model": "m", "workspace": W}
    assert found["agents"]["entries"] == {
        "Main": {"workspace": W, "k": 1},
        "other": {"workspace": "/o"},
    }
    assert configure_agent(found, harness, W) == found
    assert configure_agent({}, harness, W) == {"agents": {"defaults": {"workspace": W}}}
    with pytest.raises(ConfigurationRefused):
        configure_agent({"agents": {"entries": {"MAIN": "x"}}}, harness, W)
