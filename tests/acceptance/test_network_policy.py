"""An Agent is denied a host, learns why, and gets it while it runs; the next deploy keeps it, and taking it away works the same way."""

from __future__ import annotations

import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from person import agent_document, serve, served_machine

from oce.dev.pki import ensure_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from person import Machine, ModelEndpoint, Shell

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]

HOST = "docs.example.com"
ASK = (
    "run: python3 -I -c \"import urllib.request as u; print(u.urlopen('https://"
    f"{HOST}/').read().decode())\""
)
PAGE = b"the page of the docs"


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_given: object) -> None:
        pass


@contextmanager
def upstream(folder: Path) -> Iterator[str]:
    """Serve the docs over TLS on loopback; yields the operator's lines that lead to it."""
    identity = ensure_identity(folder, "docs", (HOST,), datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield (
            f'[[upstream]]\nhost = "{HOST}"\nport = 443\n'
            f'connect = "127.0.0.1:{server.server_port}"\nca_file = "{folder / "ca.crt"}"\n'
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def reaching(model: ModelEndpoint, tmp_path: Path) -> Iterator[Machine]:
    with upstream(tmp_path) as lines, served_machine("oce-ap-", model, lines) as found:
        yield found


def denied_program(shell: Shell) -> str:
    """Return the program that a denial names: what a person reads in the log."""
    records = shell.json("agent", "logs", "reader", "--level", "warn", "--since", "10m")["records"]
    return next(
        str(one["fields"]["binary"])
        for one in reversed(records)
        if one.get("fields", {}).get("dst_host") == HOST
    )


def the_log_is_a_window(shell: Shell) -> None:
    newest = shell.json("agent", "logs", "reader", "--limit", "1")
    assert (len(newest["records"]), newest["truncated"]) == (1, True)
    since = newest["records"][0]["time"]
    assert shell.json("agent", "logs", "reader", "--since", since)["records"][-1]["time"] >= since
    assert (
        shell.json("agent", "logs", "reader", "--since", "1d", "--limit", "1000")["truncated"]
        is False
    )
    assert "There may be more" in shell.occ("agent", "logs", "reader", "--limit", "1").err


def what_cannot_be_is_refused_before_it_is_done(shell: Shell) -> None:
    refused = shell.occ(
        "agent", "policy", "set", "reader", "--add", "-", code=1,
        stdin="name: wide\nbinaries: [{path: /usr/bin/curl}]\nendpoints: [{host: '*.com', ports: [443]}]\n",
    )  # fmt: skip
    assert "/additions/0/endpoints/0/host" in refused.err

    wrong = agent_document("reader", configuration="nowhere")
    unknown = shell.occ("apply", "-f", "-", "--dry-run", code=1, stdin=wrong)
    assert "/configurationId" in unknown.err
    shell.occ("apply", "-f", "-", "--dry-run", "--deploy", stdin=agent_document("reader"))


def test_denied_explained_added_applied_kept_and_taken_away(reaching: Machine):
    shell = reaching.shell
    before = serve(shell, "reader")
    assert "403" in shell.chat("reader", ASK)
    question = ("--binary", denied_program(shell), "--host", HOST, "--method", "GET")

    why = shell.occ("agent", "policy", "explain", "reader", *question, code=1)
    assert f"no rule names {HOST}:443" in why.out
    assert "This rule would allow it" in why.out
    rule = shell.occ("agent", "policy", "explain", "reader", *question, "--addition").out
    assert "access: read_only" in rule
    shell.occ("agent", "policy", "set", "reader", "--add", "-", "--dry-run", stdin=rule)
    assert shell.json("agent", "policy", "get", "reader")["draft"]["additions"] == []
    shell.occ("agent", "policy", "set", "reader", "--add", "-", stdin=rule)
    assert "not in force" in shell.occ("agent", "policy", "get", "reader").out
    shell.occ("agent", "policy", "explain", "reader", *question, "--draft")
    assert "403" in shell.chat("reader", ASK), "a draft changes nothing that runs"

    shell.occ("agent", "policy", "apply", "reader", "--dry-run")
    assert "403" in shell.chat("reader", ASK)
    applied = shell.json("agent", "policy", "apply", "reader")
    assert (applied["state"], applied["observation"]["loadState"]) == ("confirmed", "loaded")
    assert PAGE.decode() in shell.chat("reader", ASK)
    assert shell.json("agent", "get", "reader")["activeRevisionId"] == before["activeRevisionId"]
    picture = shell.json("agent", "policy", "get", "reader")
    assert picture["draftApplied"] is True
    assert picture["inForce"]["origin"] == "applied"
    assert picture["live"]["observation"]["matches"] is True
    writing = shell.occ("agent", "policy", "explain", "reader", *question[:-1], "POST", code=1)
    assert "POST / is not allowed by" in writing.out
    assert "access: read_write" in writing.out
    again = shell.json("agent", "policy", "apply", "reader")
    assert again["observation"]["policyVersion"] == applied["observation"]["policyVersion"]

    shell.occ("agent", "deploy", "reader", "--dry-run")
    assert len(shell.json("agent", "revisions", "reader")) == 1
    shell.occ("agent", "deploy", "reader", "--wait")
    picture = shell.json("agent", "policy", "get", "reader")
    assert picture["inForce"]["origin"] == "admitted"
    assert picture["inForce"]["revisionId"] != before["activeRevisionId"]
    assert PAGE.decode() in shell.chat("reader", ASK), "the new revision has the rule"
    the_log_is_a_window(shell)

    shell.occ("agent", "policy", "set", "reader", "--clear")
    assert shell.json("agent", "policy", "apply", "reader")["state"] == "confirmed"
    assert "403" in shell.chat("reader", ASK), "what was taken away is gone at once"
    assert shell.occ("agent", "policy", "recommendations", "reader").code == 0
    what_cannot_be_is_refused_before_it_is_done(shell)
