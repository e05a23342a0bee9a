"""What a test or benchmark of the egress process needs around it: a namespace to call from and an upstream to be called.

`Inside` is a bare namespace with the Sandbox network whose programs and sockets a test controls. `ScriptedUpstream` is a TLS
server on loopback with a CA of its own, which counts connections and records what it was sent. Neither confines anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import os
import socket
import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import oce
from oce.sandboxd.place import EgressDescriptors
from oce.testing.egress_inside import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    Script = Callable[["Seen", asyncio.StreamWriter], Awaitable[bool]]

PYTHON = str(Path(sys.executable).resolve())
"""The program that holds the sockets of `Inside.connect`."""

_START_SECONDS = 20.0
_DESCRIPTORS = 32


class Ended(Exception):  # noqa: N818 - says what happened
    """The namespace's process has gone."""


@dataclass(frozen=True)
class Ran:
    """Result of a program that ran inside."""

    code: int
    out: str
    err: str


class Inside:
    """A namespace; use `async with`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, object], list[int]]]] = {}
        self._offered: list[tuple[str, int]] = []

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE)
        source = str(Path(oce.__file__).parents[1])
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "oce.testing.egress_inside",
            str(theirs.fileno()),
            str(self._directory),
            pass_fds=[theirs.fileno()],
            env={"PYTHONPATH": source, "PATH": os.environ.get("PATH", "")},
        )
        theirs.close()
        self._control = ours
        ours.settimeout(_START_SECONDS)
        message, found, _, _ = await asyncio.to_thread(socket.recv_fds, ours, MESSAGE, _DESCRIPTORS)
        ours.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        self._offered = list(zip(json.loads(message), found, strict=True))
        asyncio.get_running_loop().add_reader(ours.fileno(), self._receive)
        return self

    async def __aexit__(self, *problem: object) -> None:
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        for _, descriptor in self._offered:
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def descriptors(self) -> EgressDescriptors:
        """Return fresh duplicates of the namespace's sockets, as a place would."""
        copies = {name: os.dup(descriptor) for name, descriptor in self._offered}
        tcp: dict[tuple[int, int], socket.socket] = {}
        udp: dict[int, socket.socket] = {}
        for name, descriptor in copies.items():
            kind, *numbers = name.split("/")
            if kind == "tcp":
                tcp[int(numbers[0]), int(numbers[1])] = socket.socket(fileno=descriptor)
            elif kind == "udp":
                udp[int(numbers[0])] = socket.socket(fileno=descriptor)
        diag = socket.socket(fileno=copies["diag"])
        return EgressDescriptors(tcp=tcp, udp=udp, diag=diag, proc=copies["proc"])

    async def run(self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Ran:
        """Run a program inside to its end."""
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin", **(env or {})}
        answer, _ = await self._ask(argv=list(argv), input=stdin, env=environment)
        return Ran(int(str(answer["code"])), str(answer["out"]), str(answer["err"]))

    async def connect(self, address: str, port: int, *, udp: bool = False) -> socket.socket:
        """Return a socket connected inside, held by `PYTHON` there. Raises OSError as the kernel did."""
        answer, found = await self._ask(connect=address, port=port, udp=udp)
        if "errno" in answer:
            code = int(str(answer["errno"]))
            raise OSError(code, os.strerror(code))
        sock = socket.socket(fileno=found[0])
        sock.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        return sock

    async def _ask(self, **request: object) -> tuple[dict[str, object], list[int]]:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._control.send(json.dumps({"id": number, **request}).encode())
        answer: tuple[dict[str, object], list[int]] = await future
        return answer

    def _receive(self) -> None:
        message, found, _, _ = socket.recv_fds(self._control, MESSAGE, 1)
        if not message:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            for future in self._waiting.values():
                future.set_exception(Ended())
            self._waiting.clear()
            return
        answer = json.loads(message)
        self._waiting.pop(answer["id"]).set_result((answer, found))


class TestAuthority:
    """A CA of a test, and certificates for names."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test root")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._sign(self._name, self._key.public_key(), constraint)
        self.file = directory / "upstream-ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def context(self, *names: str) -> ssl.SSLContext:
        """Return a server context whose certificate is for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        certificate = self._sign(subject, key.public_key(), alternatives)
        file = self._directory / f"{names[0]}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


@dataclass
class Seen:
    """One request as the upstream read it."""

    line: str
    fields: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self.fields if key == name]


async def answer_ok(_: Seen, writer: asyncio.StreamWriter) -> bool:
    """Answer 200 with a short body and go on."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return True


class ScriptedUpstream:
    """A server whose answers a test scripts; `accepted` counts connections, `seen` holds requests, `raw` every byte."""

    def __init__(self, context: ssl.SSLContext | None, script: Script = answer_ok) -> None:
        self._context = context
        self.script = script
        self.accepted = 0
        self.seen: list[Seen] = []
        self.raw = bytearray()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._context, limit=1 << 20
        )
        self.port = cast("int", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *problem: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        self.raw += head
        line, *rest = head[:-4].decode("latin-1").split("\r\n")
        fields = [(k.lower(), v.strip()) for k, _, v in (item.partition(":") for item in rest)]
        seen = Seen(line, fields, b"", reader)
        if seen.all("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if seen.all("content-length"):
            seen.body = await reader.readexactly(int(seen.all("content-length")[0]))
        elif seen.all("transfer-encoding"):
            seen.body = await self._chunks(reader, seen)
        self.raw += seen.body
        self.seen.append(seen)
        return await self.script(seen, writer)

    @staticmethod
    async def _chunks(reader: asyncio.StreamReader, seen: Seen) -> bytes:
        pieces: list[bytes] = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
            name, _, value = trailer.decode("latin-1").partition(":")
            seen.fields.append((f"trailer:{name.lower()}", value.strip()))
        return b"".join(pieces)


def configuration(upstreams: Sequence[tuple[str, int, int, Path | None]]) -> str:
    """Return an `[egress]` TOML table that sends (host, port) to a loopback port under a CA."""
    lines = ["[egress]"]
    for host, port, local, authority in upstreams:
        lines += ["[[egress.upstream]]", f'host = "{host}"', f"port = {port}"]
        lines.append(f'connect = "127.0.0.1:{local}"')
        if authority is not None:
            lines.append(f'ca_file = "{authority}"')
    return "\n".join(lines) + "\n"
