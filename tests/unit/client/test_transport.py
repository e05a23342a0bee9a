"""What happens when the answer does not come, over real sockets."""

import json
import socket
import threading

import pytest

from oce.client.api import KEY, SECRET, Client
from oce.client.context import Context
from oce.client.errors import Unreachable
from oce.client.transport import Transport
from oce.domain.secret import SecretText


class Flaky:
    """Reads a request and closes; from the `good`-th connection on it answers."""

    def __init__(self, good):
        self.good = good
        self.requests = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._socket.accept()
            with connection:
                raw = connection.recv(65_536)
                if not raw:
                    return
                self.requests.append(raw.split(b"\r\n")[0].decode())
                if len(self.requests) >= self.good:
                    body = json.dumps({"data": {"id": "x"}, "meta": {}}).encode()
                    head = f"HTTP/1.1 201 Created\r\ncontent-length: {len(body)}\r\n\r\n"
                    connection.sendall(head.encode() + body)

    def close(self):
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def flaky(tmp_path):
    (tmp_path / "key").write_text("key_1.secret")
    servers = []

    def make(good):
        servers.append(Flaky(good))
        context = Context(
            name="t", url=servers[-1].url, key_file=str(tmp_path / "key"), namespace="default"
        )
        return servers[-1], Client(context, timeout=5)

    yield make
    for server in servers:
        server.close()


def test_a_creation_with_an_idempotency_key_is_sent_once_more(flaky):
    server, client = flaky(good=2)
    assert client.create(SECRET, {"name": "k", "value": "v"}) == {"id": "x"}
    client.close()
    assert server.requests == ["POST /namespaces/default/secrets HTTP/1.1"] * 2


def test_what_must_not_happen_twice_is_not_repeated(flaky):
    server, client = flaky(good=2)
    with pytest.raises(Unreachable) as lost:
        client.create(KEY, {"servicePrincipalId": "spn_1", "name": "ci"})
    assert lost.value.sent
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://192.0.2.1", "loopback only"),
        ("ftp://localhost", "not the URL"),
        ("https://", "not the URL"),
        ("https://x?y=1", "not the URL"),
    ],
)
def test_an_origin_that_would_leak_the_key_or_is_none_is_refused(url, words):
    with pytest.raises(Unreachable, match=words):
        Transport(url, SecretText("key"))


def test_verification_cannot_be_switched_off(tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(Unreachable, match="CA file"):
        Transport("https://localhost", SecretText("key"), ca_file=str(tmp_path / "ca.pem"))
