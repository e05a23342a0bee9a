"""Pure readings: phases, log decisions, supplier text, certificate bundles, differences."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.contracts.refusals import RevisionUnsupported
from oce.drivers.openshell.adoption import first_difference
from oce.drivers.openshell.documents import certificates
from oce.drivers.openshell.logs import chunk, decision
from oce.drivers.openshell.observation import observe
from oce.drivers.openshell.provisioning import require_version
from oce.drivers.openshell.records import LogRecord, Meta, SandboxRecord
from oce.drivers.openshell.wire import normalised
from oce.sandboxd.egress.model import Decision
from oce.sandboxd.lifecycle.logs import decision_fields, decision_text
from oce.testing.openshell_bench import REVISION_ID, a_revision


def record(phase, exit_code=None, restarts=0, revision=REVISION_ID):
    return SandboxRecord(
        meta=Meta(
            id="i",
            name="n",
            workspace="w",
            labels={},
            annotations={"openclaw.dev/revision-id": revision},
            resource_version=1,
        ),
        spec={},
        phase=phase,
        exit_code=exit_code,
        restart_count=restarts,
        reason="",
    )


NAMES = dict(
    enumerate(
        [
            "PROVISIONING",
            "READY",
            "ERROR",
            "DELETING",
            "UNKNOWN",
            "STOPPING",
            "STOPPED",
            "STARTING",
            "COMPLETED",
        ],
        1,
    )
)
TABLE = {
    0: ("unknown", None),
    1: ("starting", None),
    2: ("running", None),
    3: ("lost", "SANDBOX_FAILED"),
    4: ("lost", "SANDBOX_DELETING"),
    5: ("unknown", None),
    6: ("lost", "SANDBOX_STOPPED"),
    7: ("lost", "SANDBOX_STOPPED"),
    8: ("starting", "HARNESS_RESTARTING"),
    9: ("lost", "HARNESS_EXITED"),
    99: ("unknown", None),
}


@pytest.mark.parametrize(("number", "wanted"), TABLE.items())
def test_g20_the_observation_table_by_name_and_by_number(number, wanted):
    for phase in (number, f"SANDBOX_PHASE_{NAMES.get(number, 'NEW')}"):
        found = observe(a_revision(), record(phase, 137, 4))
        assert (found.state, found.code) == wanted
        restarting = wanted[1] == "HARNESS_RESTARTING"
        assert (found.exit_code, found.restarts) == ((137, 4) if restarting else (None, None))


def test_g20_restarting_needs_both_values_in_range_and_the_right_revision():
    for code, restarts in itertools.product((None, 2**31, -(2**31) - 1), (0, 2**32)):
        found = observe(a_revision(), record(8, code, restarts))
        assert (found.state, found.code) == ("starting", None)
    assert observe(a_revision(), record(8, 0, 1)).exit_code == 0
    assert observe(a_revision(), record(8, -1, 1)).exit_code == -1
    assert observe(a_revision(), record(2, revision="rev_x")).state == "unknown"
    assert observe(a_revision(), None).code == "SANDBOX_MISSING"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "NET:OPEN [INFO] ALLOWED /usr/bin/node(71) -> api.openai.com:443 [policy:_provider_openai engine:opa]",
            (True, "_provider_openai", "/usr/bin/node", "api.openai.com", 443, ""),
        ),
        (
            "NET:OPEN [MED] DENIED /usr/bin/curl(64) -> example.com:443 [policy:- engine:opa] [reason:a b: c]",
            (False, "-", "/usr/bin/curl", "example.com", 443, "a b: c"),
        ),
        (
            "HTTP:GET [INFO] ALLOWED /b(1) -> GET https://h.example/p?q [policy:web engine:l7]",
            (True, "web", "/b", "h.example", 443, ""),
        ),
        ("NET:OPEN [MED] DENIED - -> [::1]:80 [policy:-]", None),
        ("something else", None),
        ("NET:OPEN [MED] DENIED /b(1) -> host:notaport [policy:-]", None),
    ],
)
def test_decisions_in_log_lines(message, wanted):
    found = decision(message)
    if wanted is None:
        assert found is None
    else:
        assert (
            found.allowed,
            found.rule,
            found.binary,
            found.host,
            found.port,
            found.reason,
        ) == wanted


@given(st.text(alphabet="[]():->/ aNETOPENDIED.:\x00\n", max_size=400))
def test_a_hostile_log_line_never_raises(text):
    decision("NET:OPEN [MED] DENIED " + text)
    decision(text)


def test_parsing_is_linear():
    began = time.process_time()
    for hostile in ("[" * 100_000, "NET:OPEN [MED] DENIED /b -> " + "x " * 50_000, "[a" * 50_000):
        decision("NET:OPEN [MED] DENIED /b(1) -> h:1 " + hostile)
        decision(hostile)
    assert time.process_time() - began < 1


@given(st.text(max_size=3000))
def test_g12_supplier_text_is_one_short_printable_line(text):
    found = normalised(text)
    assert len(found) <= 512
    assert found.isprintable()
    assert "  " not in found


def test_br31_a_bundle_is_certificates_only():
    pem = (
        "comment\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
        "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\ntrailing\n"
        "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n"
    )
    found = certificates(pem)
    assert found.count("BEGIN CERTIFICATE") == 2
    assert "AAAA" not in found
    assert "trailing" not in found
    assert certificates("nothing") == ""


@pytest.mark.parametrize("version", ["0.1.3", "0.1.5", "v0.2.0", "1.0.0", "0.1.3-rc.1+x"])
def test_versions_that_have_the_features(version):
    require_version(version)


@pytest.mark.parametrize("version", ["0.1.2", "0.0.111", "0.1", "x"])
def test_versions_that_do_not(version):
    with pytest.raises(RevisionUnsupported):
        require_version(version)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_a_document_equals_itself_and_a_difference_names_only_a_path(document):
    assert first_difference(document, document, "spec") is None
    assert first_difference({"a": document}, {"a": [document]}, "spec").startswith("spec.a")


def test_sandboxds_own_lines_are_read_by_their_parts_and_by_their_text():
    made = Decision(
        sandbox_id="s",
        time=1.0,
        activity="HTTP:GET",
        severity="MED",
        allowed=False,
        rule="web",
        binary="/usr/bin/curl",
        pid=7,
        host="api.example.com",
        port=443,
        method="GET",
        path="/a?secret=1",
        engine="l7",
        reason="no rule allows it",
    )
    for fields in (decision_fields(made), {}):
        record = LogRecord(
            sandbox_id="s",
            time=None,
            level="OCSF",
            target="ocsf",
            message=decision_text(made),
            source="sandbox",
            fields=fields,
        )
        found = chunk("sb", datetime(2026, 1, 1, tzinfo=UTC), [record], 1).lines[0].decision
        assert (found.allowed, found.rule, found.binary) == (False, "web", "/usr/bin/curl")
        assert (found.host, found.port) == ("api.example.com", 443)
        assert found.reason == "no rule allows it"
