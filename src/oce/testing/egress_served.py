"""A Sandbox served by a real egress service in this process: namespace, service and scripted upstream, put together.

For tests of traffic. The upstream is reached by the operator's override, as a private upstream would be; any other allowed name
goes to `resolve`, which counts what it is asked and answers what the test put into `answers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oce.policy.model import Access, Endpoint, Enforcement, NetworkPolicy, Protocol, Rule
from oce.sandboxd.egress.config import load_config
from oce.sandboxd.egress.model import BoundEndpoint, CredentialBinding, Decision, SandboxEgress
from oce.sandboxd.egress.names import address_v4
from oce.sandboxd.egress.service import EgressService
from oce.testing.egress_rig import PYTHON, Inside, ScriptedUpstream, TestAuthority, configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

API = "api.models.example"
OTHER = "other.models.example"
PLACEHOLDER = "openshell:resolve:env:OPENAI_API_KEY"
SECRET = "sk-real-0123456789"  # noqa: S105 - invented
PROVIDER = "p1"
SANDBOX = "sb-1"
PATIENCE = 10.0


def api_endpoint(host: str = API, **changes: object) -> Endpoint:
    """Return an enforced REST endpoint that allows everything, changed as asked."""
    values: dict[str, Any] = {
        "ports": (443,),
        "protocol": Protocol.REST,
        "enforcement": Enforcement.ENFORCE,
        "access": Access.FULL,
    }
    return Endpoint(host=host, **{**values, **changes})


def policy_of(*endpoints: Endpoint, binaries: Sequence[str] = (PYTHON,)) -> NetworkPolicy:
    """Return a policy of one rule, `models`."""
    return NetworkPolicy((Rule(key="models", binaries=tuple(binaries), endpoints=endpoints),))


def configured(
    policy: NetworkPolicy,
    *,
    generation: int = 1,
    bindings: Sequence[CredentialBinding] | None = None,
) -> SandboxEgress:
    """Return a Sandbox whose one credential is bound to `/v1/**` of the API."""
    binding = CredentialBinding(
        provider_id=PROVIDER,
        provider_name="openai",
        credential_key="OPENAI_API_KEY",
        placeholder=PLACEHOLDER,
        endpoints=(BoundEndpoint(host=API, port=443, path="/v1/**"),),
    )
    return SandboxEgress(
        sandbox_id=SANDBOX,
        workspace="team",
        sandbox_name="agent",
        generation=generation,
        policy=policy,
        bindings=(binding,) if bindings is None else bindings,
        mounts={"/": "/"},
    )


@dataclass
class Served:
    """Everything a test of traffic touches."""

    inside: Inside
    upstream: ScriptedUpstream
    service: EgressService
    trust: ssl.SSLContext
    ca_file: Path
    answers: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    _generation: int = 1

    def apply(
        self, policy: NetworkPolicy, bindings: Sequence[CredentialBinding] | None = None
    ) -> None:
        """Put a policy in force as the next generation."""
        self._generation += 1
        self.service.update(configured(policy, generation=self._generation, bindings=bindings))

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Stand in for the host's resolver."""
        self.queries.append(f"{host}:{port}")
        return self.answers

    async def open(
        self, host: str = API, *, port: int = 443, sni: str | None = "", address: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TLS connection from inside as `PYTHON`; `sni` defaults to the host."""
        sock = await self.inside.connect(address or socket.inet_ntoa(address_v4(host)), port)
        name = host if sni == "" else sni
        context = self.trust
        if name is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name or "")

    async def open_plain(
        self, host: str = API, *, port: int = 80, address: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain connection from inside as `PYTHON`."""
        sock = await self.inside.connect(address or socket.inet_ntoa(address_v4(host)), port)
        return await asyncio.open_connection(sock=sock)

    async def exchange(
        self, raw: bytes, host: str = API, *, sni: str | None = "", address: str = ""
    ) -> bytes:
        """Send bytes over TLS and return all that comes back until the connection ends."""
        reader, writer = await self.open(host, sni=sni, address=address)
        return await self.converse(reader, writer, raw)

    @staticmethod
    async def converse(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes
    ) -> bytes:
        """Send bytes and return all that comes back until the connection ends."""
        writer.write(raw)
        received = b""
        try:
            async with asyncio.timeout(PATIENCE):
                while piece := await reader.read(65536):
                    received += piece
        except ConnectionError as error:
            received += f"<{type(error).__name__}>".encode()
        await hang_up(writer)
        return received

    async def settled(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the condition is any fact, not an event
                await asyncio.sleep(0.005)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a client connection, however the other side left it."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Served]:
    """Serve one Sandbox; the policy allows everything of the API to `PYTHON`."""
    authority = TestAuthority(directory)
    upstream = ScriptedUpstream(authority.context(API, OTHER))
    async with Inside(directory) as inside, upstream:
        config = directory / "sandboxd.toml"
        table = [(host, 443, upstream.port, authority.file) for host in (API, OTHER)]
        config.write_text(configuration(table))
        state = directory / "state"
        state.mkdir(mode=0o700)
        asked: list[Served] = []

        async def resolve(host: str, port: int) -> Sequence[str]:
            return await asked[0].resolve(host, port)

        service = EgressService(state, load_config(config), resolve)
        certificate = directory / "sandbox-ca.pem"
        certificate.write_bytes(service.certificate(SANDBOX))
        service.put_credentials(PROVIDER, 1, {"OPENAI_API_KEY": SECRET})
        service.install(configured(policy_of(api_endpoint())), inside.descriptors())
        trust = ssl.create_default_context(cafile=str(certificate))
        served = Served(inside, upstream, service, trust, certificate)
        asked.append(served)
        subscription = service.hub.subscribe()

        async def collect() -> None:
            while True:
                served.decisions.extend(await subscription.next())

        collector = asyncio.create_task(collect())
        try:
            yield served
        finally:
            collector.cancel()
            await service.close()
