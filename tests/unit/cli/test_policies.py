import json

import pytest
import yaml

POLICY = "/namespaces/default/agents/demo/network-policy"
RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [{"host": "docs.example.com", "ports": [443], "access": "read_only"}],
}
OTHER = {**RULE, "name": "other"}
SEEN = {"providerVersion": "7", "policyVersion": 2, "loadState": "loaded", "matches": True}


def picture(**changes):
    return {
        "agentId": "agt_1",
        "draft": {"configurationId": "cfg_1", "generation": 4, "additions": [RULE]},
        "inForce": {"revisionId": "rev_1", "origin": "admitted", "defaults": [], "additions": []},
        "draftApplied": False,
        "live": {"status": "observed", "observedAt": "now", "observation": SEEN},
        **changes,
    }


def test_get_says_what_is_draft_and_what_is_in_force(server, occ):
    server.on(f"GET {POLICY}", picture())
    code, out, _ = occ("agent", "policy", "get", "demo")
    assert code == 0
    assert "draft   docs  /usr/bin/curl  docs.example.com:443 read_only" in out
    assert "generation 4. It is not in force: apply or deploy." in out
    assert "Observed: policy version 2, loaded." in out


def test_get_shows_a_draft_that_holds_no_rules(server, occ):
    odd = [1, {"name": "half", "endpoints": [{"host": "h", "ports": 443}], "binaries": "x"}]
    draft = {"configurationId": "cfg_1", "generation": 4, "additions": odd}
    server.on(f"GET {POLICY}", picture(draft=draft))
    code, out, _ = occ("agent", "policy", "get", "demo")
    assert (code, "(not a rule)" in out, "h:443" in out) == (0, True, True)


def test_get_fails_when_the_provider_says_something_else(server, occ):
    live = {"status": "observed", "observedAt": "now", "observation": {**SEEN, "matches": False}}
    server.on(f"GET {POLICY}", picture(live=live))
    code, _, err = occ("agent", "policy", "get", "demo")
    assert (code, "not what our records say" in err) == (1, True)


def test_rules_are_added_replaced_and_removed_under_the_generation_that_was_read(
    server, occ, tmp_path
):
    server.on(f"GET {POLICY}", picture())
    changed = {"configurationId": "cfg_1", "generation": 5, "additions": [OTHER]}
    server.on(f"PUT {POLICY}", changed)
    (tmp_path / "rule.yaml").write_text(yaml.safe_dump(OTHER))
    (tmp_path / "same.yaml").write_text(yaml.safe_dump({"additions": [{**RULE, "binaries": []}]}))
    assert occ("agent", "policy", "set", "demo", "--add", "rule.yaml")[0] == 0
    assert occ("agent", "policy", "set", "demo", "--add", "same.yaml")[0] == 0
    assert occ("agent", "policy", "set", "demo", "--add", "rule.yaml", "--remove", "docs")[0] == 0
    assert occ("agent", "policy", "set", "demo", "--clear", "--if-generation", "9")[0] == 0
    sent = [item for item in server.requests if item["method"] == "PUT"]
    assert [item["headers"]["if-match"] for item in sent] == ['"4"', '"4"', '"4"', '"9"']
    assert [item["body"]["additions"] for item in sent] == [
        [RULE, OTHER],
        [{**RULE, "binaries": []}],
        [OTHER],
        [],
    ]


@pytest.mark.parametrize(
    "arguments",
    [("--clear", "--add", "rule.yaml"), (), ("--remove", "nothing"), ("-f", "odd.yaml")],
)
def test_a_change_that_is_not_clear_is_not_sent(server, occ, tmp_path, arguments):
    server.on(f"GET {POLICY}", picture())
    (tmp_path / "odd.yaml").write_text("rules: []")
    assert occ("agent", "policy", "set", "demo", *arguments)[0] in {1, 2}
    assert not server.bodies("PUT")


@pytest.mark.parametrize(("state", "code"), [("confirmed", 0), ("pending", 1)])
def test_apply_succeeds_only_when_it_is_in_force(server, occ, state, code):
    done = {"operationId": "npo_1", "revisionId": "rev_1", "state": state, "observation": SEEN}
    server.on(f"POST {POLICY}/apply", done)
    assert occ("agent", "policy", "apply", "demo", "--if-generation", "4")[0] == code
    (sent,) = server.requests
    assert sent["headers"]["if-match"] == '"4"'
    assert sent["headers"]["idempotency-key"]


def test_explain_prints_the_rule_and_the_command(server, occ):
    server.on(
        f"GET {POLICY}/explain",
        {"allowed": False, "rule": "-", "sentence": "Denied: \x1b[2J.", "basis": "active", "addition": RULE},
    )  # fmt: skip
    asked = ("agent", "policy", "explain", "demo", "--binary", "/usr/bin/curl", "--host", "docs.example.com")  # fmt: skip
    code, out, _ = occ(*asked, "--method", "GET", "--path", "/a b", "--draft")
    assert code == 1
    assert "Denied: ?[2J." in out
    assert "occ agent policy set demo --add FILE && occ agent policy apply demo" in out
    path = server.requests[0]["path"]
    assert "path=%2Fa+b" in path
    assert "basis=draft" in path
    code, out, _ = occ(*asked, "--addition")
    assert (code, yaml.safe_load(out)) == (0, RULE)


def test_recommendations_are_marked_and_harmless(server, occ):
    item = {"id": "c1", "state": "pending", "host": "h", "port": 443, "binary": "/b", "reason": "\x1b]0;x"}  # fmt: skip
    found = {"revisionId": "rev_1", "untrusted": True, "recommendations": [item]}
    server.on(f"GET {POLICY}/recommendations", found)
    code, out, _ = occ("agent", "policy", "recommendations", "demo")
    assert code == 0
    assert "UNTRUSTED" in out
    assert "\x1b" not in out
    assert json.loads(occ("agent", "policy", "recommendations", "demo", "-o", "json")[1]) == found
