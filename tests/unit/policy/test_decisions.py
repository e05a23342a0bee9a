"""Decisions, their explanations, validation and the document form."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.policy.codec import from_document, to_document
from oce.policy.decide import Connection, Judge, Request
from oce.policy.explain import explain
from oce.policy.model import (
    Access,
    DenyCode,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    PolicyError,
    Protocol,
    QueryMatcher,
    RequestMatcher,
    Rule,
    Tls,
)
from oce.policy.validate import policy_problems

CURL, NODE = "/usr/bin/curl", "/usr/bin/node"
ENFORCED = {"protocol": Protocol.REST, "enforcement": Enforcement.ENFORCE}


def endpoint(host="api.x.com", **changes):
    return Endpoint(host=host, ports=changes.pop("ports", (443,)), **changes)


def rule(key, *endpoints, binaries=(CURL,)):
    return Rule(key=key, binaries=binaries, endpoints=endpoints)


def connect(policy, host="api.x.com", port=443, binaries=(CURL,)):
    return Judge(policy).connection(Connection(host, port, binaries))


def ask(policy, method, path, query="", binaries=(CURL,)):
    return Judge(policy).request(
        Connection("api.x.com", 443, binaries), Request(method, path, query)
    )


def test_everything_is_denied_that_no_rule_allows():
    policy = NetworkPolicy((rule("b", endpoint()), rule("a", endpoint())))
    assert connect(policy).rule == "a"
    assert connect(NetworkPolicy()).code is DenyCode.NO_POLICY
    assert connect(policy, host="y.com").code is DenyCode.NO_ENDPOINT
    assert connect(policy, port=80).code is DenyCode.NO_ENDPOINT
    assert connect(policy, binaries=(NODE,)).code is DenyCode.BINARY
    assert connect(policy, binaries=(CURL, NODE)).code is DenyCode.BINARY
    assert connect(policy, binaries=()).code is DenyCode.IDENTITY
    assert not connect(NetworkPolicy((rule("a", endpoint(), binaries=()),))).allowed


def test_holders_must_fit_one_rule_together():
    policy = NetworkPolicy((rule("a", endpoint()), rule("b", endpoint(), binaries=(NODE,))))
    assert not connect(policy, binaries=(CURL, NODE)).allowed


def test_presets_rules_and_deny_rules():
    read = NetworkPolicy((rule("r", endpoint(access=Access.READ_ONLY, **ENFORCED)),))
    assert ask(read, "HEAD", "/").allowed
    assert ask(read, "POST", "/").code is DenyCode.METHOD_PATH
    write = NetworkPolicy((rule("r", endpoint(access=Access.READ_WRITE, **ENFORCED)),))
    assert ask(write, "PATCH", "/").allowed
    assert not ask(write, "DELETE", "/").allowed
    deny = RequestMatcher(path="/admin/**")
    allow = RequestMatcher(method="get", path="/**")
    both = NetworkPolicy((rule("r", endpoint(allow=(allow,), deny=(deny,), **ENFORCED)),))
    assert ask(both, "HEAD", "/v1").allowed
    assert ask(both, "GET", "/admin/x").code is DenyCode.DENY_RULE
    other = NetworkPolicy((*both.rules, rule("z", endpoint(access=Access.FULL, **ENFORCED))))
    assert ask(other, "GET", "/admin").rule == "r"


def test_the_more_specific_path_decides():
    policy = NetworkPolicy(
        (
            rule("wide", endpoint(access=Access.FULL, **ENFORCED)),
            rule("narrow", endpoint(access=Access.READ_ONLY, path="/v1/**", **ENFORCED)),
        )
    )
    assert ask(policy, "POST", "/v2").allowed
    assert not ask(policy, "POST", "/v1/x").allowed


def test_query_matchers_need_every_value_to_allow_and_any_to_deny():
    matcher = (QueryMatcher("mode", ("safe*",)),)
    allow = NetworkPolicy(
        (rule("r", endpoint(allow=(RequestMatcher(query=matcher),), **ENFORCED)),)
    )
    assert ask(allow, "GET", "/", "mode=safe/1&x=9").allowed
    assert not ask(allow, "GET", "/", "mode=safe&mode=wild").allowed
    assert not ask(allow, "GET", "/", "x=1").allowed
    assert not ask(allow, "GET", "/", "mode=%").allowed
    deny = NetworkPolicy(
        (rule("r", endpoint(access=Access.NONE, allow=(RequestMatcher(),), deny=(RequestMatcher(query=matcher),), **ENFORCED)),)
    )  # fmt: skip
    assert not ask(deny, "GET", "/", "mode=wild&mode=safe").allowed


def test_audit_passes_and_says_so():
    policy = NetworkPolicy((rule("r", endpoint(protocol=Protocol.REST, access=Access.READ_ONLY)),))
    verdict = ask(policy, "POST", "/")
    assert (verdict.allowed, verdict.would_deny, verdict.code) == (True, True, DenyCode.METHOD_PATH)


def test_a_denial_names_the_addition_that_would_allow_it():
    policy = NetworkPolicy((rule("r", endpoint(access=Access.READ_ONLY, **ENFORCED)),))
    denied = explain(policy, host="Y.com.", port=443, binary=NODE)
    assert denied.sentence.startswith(f"Denied: {NODE} to y.com:443; no rule names y.com:443.")
    added = from_document({"extra": denied.addition})
    assert policy_problems(added) == ()
    assert connect(added, host="y.com", binaries=(NODE,)).allowed
    request = explain(
        policy, host="api.x.com", port=443, binary=CURL, method="post", path="/a/../b?k=s3cr3t"
    )
    assert "POST /b" in request.sentence
    assert "s3cr3t" not in request.sentence
    assert ask(from_document({"extra": request.addition}), "POST", "/b").allowed
    assert explain(policy, host="api.x.com", port=443, binary=CURL).rule == "r"
    assert explain(policy, host="api.x.com", port=443, binary="").addition is None


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"host": ""}, "host"),
        ({"host": "*"}, "host"),
        ({"host": "**"}, "host"),
        ({"host": "x.*"}, "host"),
        ({"host": "2130706433"}, "host"),
        ({"host": "0x7f.1"}, "host"),
        ({"host": "127.0.0.1"}, "host"),
        ({"host": "::ffff:169.254.169.254"}, "host"),
        ({"host": "a b"}, "host"),
        ({"ports": ()}, "ports"),
        ({"ports": (0,)}, "ports"),
        ({"ports": (70000,)}, "ports"),
        ({"allowed_ips": ("0.0.0.0/0",)}, "allowed_ips"),
        ({"allowed_ips": ("0.0.0.0/1", "128.0.0.0/1")}, "allowed_ips"),
        ({"allowed_ips": ("::/0",)}, "allowed_ips"),
        ({"allowed_ips": ("10.0.0.1/8",)}, "allowed_ips"),
        ({"allowed_ips": ("127.0.0.0/8",)}, "allowed_ips"),
        ({"access": Access.FULL}, "protocol rest"),
        ({"protocol": Protocol.REST}, "access or rules"),
        ({"protocol": Protocol.REST, "access": Access.FULL, "tls": Tls.SKIP}, "tls"),
        ({"protocol": Protocol.REST, "access": Access.FULL, "allow": (RequestMatcher(),)}, "both"),
        ({"protocol": Protocol.REST, "access": Access.FULL, "path": "/a/../b"}, "path"),
        ({"protocol": Protocol.REST, "allow": (RequestMatcher(path="x"),)}, "path"),
    ],
)  # fmt: skip
def test_what_is_not_admitted_is_named(changes, where):
    bad = dataclasses.replace(endpoint(), **changes)
    problems = policy_problems(NetworkPolicy((rule("r", bad),)))
    assert problems
    assert where in str(problems[0])
    assert str(problems[0]).startswith("network_policies.r")


def test_rules_need_programs_and_free_keys():
    assert policy_problems(NetworkPolicy((rule("r", endpoint(), binaries=()),)))
    assert policy_problems(NetworkPolicy((rule("r", endpoint(), binaries=("curl",)),)))
    assert policy_problems(NetworkPolicy((rule("_provider_x", endpoint()),)))
    assert not policy_problems(NetworkPolicy((rule("_provider_x", endpoint()),)), authored=False)
    assert not policy_problems(NetworkPolicy((rule("r", endpoint("127.evil.example")),)))


def test_two_readings_of_one_connection_are_refused_by_intersection():
    skip = rule("a", endpoint("*.x.com", tls=Tls.SKIP), binaries=("/usr/bin/*",))
    inspected = rule("b", endpoint("api.*.com", protocol=Protocol.REST, access=Access.FULL))
    assert policy_problems(NetworkPolicy((skip, inspected)))
    elsewhere = rule("b", endpoint("api.y.com", protocol=Protocol.REST, access=Access.FULL))
    assert not policy_problems(NetworkPolicy((skip, elsewhere)))
    other_program = dataclasses.replace(inspected, binaries=("/opt/x",))
    assert not policy_problems(NetworkPolicy((skip, other_program)))


MATCHERS = st.builds(
    RequestMatcher,
    method=st.sampled_from(["*", "GET", "POST"]),
    path=st.sampled_from(["**", "/v1/**"]),
    query=st.lists(
        st.builds(QueryMatcher, st.text(max_size=3), st.tuples(st.text(max_size=3))), max_size=1
    ).map(tuple),
)
ENDPOINTS = st.builds(
    Endpoint,
    host=st.sampled_from(["", "a.x", "*.x"]),
    ports=st.sampled_from([(443,), (80, 443), (80,)]),
    protocol=st.sampled_from(Protocol),
    tls=st.sampled_from(Tls),
    enforcement=st.sampled_from(Enforcement),
    access=st.sampled_from(Access),
    allow=st.lists(MATCHERS, max_size=2).map(tuple),
    deny=st.lists(MATCHERS, max_size=2).map(tuple),
    path=st.sampled_from(["", "/v1/**"]),
    allowed_ips=st.sampled_from([(), ("10.0.0.0/8",)]),
    allow_encoded_slash=st.booleans(),
)
POLICIES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.lists(ENDPOINTS, max_size=2), max_size=3
).map(lambda d: NetworkPolicy(tuple(rule(key, *items) for key, items in d.items())))


@given(POLICIES)
def test_a_policy_survives_its_document(policy):
    assert from_document(to_document(policy)) == policy


@given(POLICIES, st.sampled_from(["GET", "POST"]), st.sampled_from(["/", "/v1/x"]))
def test_a_request_is_allowed_only_on_an_allowed_connection_and_by_a_rule_that_exists(
    policy, method, path
):
    judge = Judge(policy)
    for binaries in ((CURL,), (NODE,), (CURL, NODE), ()):
        connection = Connection("a.x", 443, binaries)
        verdict = judge.request(connection, Request(method, path))
        if verdict.allowed:
            assert judge.connection(connection).allowed
            assert binaries == (CURL,)
            assert verdict.rule in {r.key for r in policy.rules}
        else:
            assert verdict.reason
            assert verdict.code


@given(POLICIES, st.sampled_from(["GET", "POST"]), st.sampled_from(["/", "/v1/x"]))
def test_what_an_explanation_says_to_add_lets_the_request_pass(policy, method, path):
    told = explain(policy, host="a.x", port=443, binary=CURL, method=method, path=path)
    if told.allowed or told.addition is None:
        return
    wider = NetworkPolicy((*policy.rules, *from_document({"zz": told.addition}).rules))
    assert explain(wider, host="a.x", port=443, binary=CURL, method=method, path=path).allowed


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "network_policies"),
        ({"r": {"endpoint": []}}, "network_policies.r.endpoint"),
        (
            {"r": {"endpoints": [{"host": "x", "port": "443"}]}},
            "network_policies.r.endpoints[0].ports",
        ),
        (
            {"r": {"endpoints": [{"protocol": "graphql"}]}},
            "network_policies.r.endpoints[0].protocol",
        ),
        ({"r": {"endpoints": [{"mcp": {}}]}}, "network_policies.r.endpoints[0].mcp"),
        ({"r": {"endpoints": [{"port": 1, "ports": [2]}]}}, "network_policies.r.endpoints[0]"),
    ],
)
def test_a_document_outside_the_schema_is_refused_by_its_path(document, path):
    with pytest.raises(PolicyError) as caught:
        from_document(document)
    assert caught.value.path == path
