"""A scripted HTTP server on loopback, and `occ` run in this process against it."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from oce.cli.main import run


@dataclass
class Scripted:
    """Answers by `METHOD path`; every request is kept."""

    url: str = ""
    answers: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def on(self, request, data=None, status=200, headers=None, raw=None):
        document = raw if raw is not None else {"data": data, "meta": {"requestId": "req_1"}}
        self.answers.setdefault(request, []).append((status, document, headers or {}))

    def refuse(self, request, status, code, **error):
        body = {"error": {"code": code, "message": f"about {code}", **error}}
        headers = {"retry-after": "7"} if status == 429 else {}
        self.on(
            request, status=status, raw=body | {"meta": {"requestId": "req_9"}}, headers=headers
        )

    def bodies(self, method):
        return [item["body"] for item in self.requests if item["method"] == method]


@pytest.fixture
def server():
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self):
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            script.requests.append(
                {
                    "method": self.command,
                    "path": self.path,
                    "headers": {key.lower(): value for key, value in self.headers.items()},
                    "body": json.loads(raw) if raw else None,
                }
            )
            path = self.path.partition("?")[0]
            queue = script.answers.get(f"{self.command} {path}")
            if not queue:
                missing = {"error": {"code": "NOT_FOUND", "message": "about NOT_FOUND"}}
                status, document, headers = 404, missing | {"meta": {"requestId": "req_9"}}, {}
            else:
                status, document, headers = queue.pop(0) if len(queue) > 1 else queue[0]
            payload = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("content-length", str(len(payload)))
            self.end_headers()
            if status != 204:
                self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 # the base class's names

        def log_message(self, *_given):
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    script.url = f"http://127.0.0.1:{listener.server_port}"
    yield script
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def occ(server, tmp_path, monkeypatch, capsys):
    key = tmp_path / "key"
    key.write_text("key_test.secret")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "OCC_HOME": str(tmp_path / "home"),
        "OCC_URL": server.url,
        "OCC_SERVICE_KEY_FILE": str(key),
        "OCC_NAMESPACE": "default",
    }.items():
        monkeypatch.setenv(name, value)

    def invoke(*arguments):
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke
