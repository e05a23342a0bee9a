"""The control link verifies whom it talks to; `Host` is the advertised name (reference/sandbox-openshell.md §10.2)."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from oce.contracts.refusals import TransientDependency
from oce.domain.secret import SecretText
from oce.drivers.openshell.transport import held_failure, read_status, service_url
from oce.testing.openshell_bench import a_backend

BODY = b'{"runtimeFailure": {"code": "LOGIN_FAILED"}}'


def certificate(folder, *names):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


class Server:
    def __init__(self, folder):
        self.heads = []
        self.names = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "crt", folder / "key")
        self.context.sni_callback = lambda _socket, name, _context: self.names.append(name)

    async def answer(self, reader, writer):
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(BODY), BODY)
        )
        await writer.drain()
        writer.close()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0, ssl=self.context)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()


async def ask(server, folder, host):
    backend = a_backend(server.port, host=host, tls=True, root_certificate_path=str(folder / "crt"))
    urls = service_url(backend, "https://ws--sb.openshell.localhost:17670/")
    return await read_status(backend, urls, SecretText("token"))


async def test_an_address_sends_no_name_and_must_be_in_the_certificate(tmp_path):
    folder = certificate(tmp_path / "a", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    async with Server(folder) as server:
        assert held_failure(await ask(server, folder, "127.0.0.1")) == {"code": "LOGIN_FAILED"}
        assert server.names == [None]
        assert f"Host: ws--sb.openshell.localhost:{server.port}\r\n" in server.heads[0]


async def test_a_name_is_sent_and_verified(tmp_path):
    folder = certificate(tmp_path / "a", x509.DNSName("localhost"))
    async with Server(folder) as server:
        assert held_failure(await ask(server, folder, "localhost")) is not None
        assert server.names == ["localhost"]


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_another_peer_never_gets_the_token(tmp_path, wrong):
    name = "other.example" if wrong == "name" else "localhost"
    folder = certificate(tmp_path / "a", x509.DNSName(name))
    trusted = folder if wrong == "name" else certificate(tmp_path / "b", x509.DNSName("localhost"))
    async with Server(folder) as server:
        with pytest.raises(TransientDependency):
            await ask(server, trusted, "localhost")
        assert server.heads == []
