"""The `openshell` Backend: how this installation reaches its OpenShell gateway, and which Drivers share that connection.

The link must be protected (TLS and a bearer token); anything weaker needs the operator's explicit acknowledgement, and the
acknowledgement is refused when it is not needed, so that it always means what it says (reference/sandbox-openshell.md §4).
It opens nothing: `wire.Gateway` does.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from oce.drivers.openshell.documents import Block, absolute_path, refuse, text

DEFAULT_TIMEOUT_MS: Final = 10_000
_DEFAULT_SERVICE_PORT: Final = 8080
_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A parsed Backend. `host` is a DNS name or an IP literal without brackets; `token_path` None means unauthenticated."""

    host: str
    port: int
    tls: bool
    token_path: str | None
    root_certificate_path: str | None
    request_timeout_ms: int
    sandbox_id: str
    credential_gateway_id: str

    @property
    def authority(self) -> str:
        """`host:port`, an IPv6 literal in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def timeout_seconds(self) -> float:
        """Deadline of one RPC in seconds."""
        return self.request_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    scheme: str | None


def parse_backend(
    configuration: object,
    drivers: object,
    *,
    control_namespace: str | None = None,
    path: str = "",
) -> Backend:
    """Check a Backend's `configuration` and `drivers` blocks of the startup YAML.

    `control_namespace` is the Kubernetes namespace that a bare `serviceName` is looked up in. Raises ConfigurationRefused.
    """
    block = Block(configuration, f"{path}/configuration")
    address, scheme = _address(block, control_namespace)
    root = block.optional_text("rootCertificatePath")
    if root is not None:
        absolute_path(root, block.at("rootCertificatePath"))
    tls = scheme == "https" or (scheme is None and root is not None)
    if root is not None and not tls:
        refuse(block.at("rootCertificatePath"), "INVALID_VALUE", "needs https")
    if block.has("operatorTls"):
        refuse(
            block.at("operatorTls"), "INVALID_VALUE", "operator credential reads are not offered"
        )
    token_path = _token_path(block)
    timeout = block.number("requestTimeoutMs", 1000, 30_000, DEFAULT_TIMEOUT_MS)
    _acknowledgement(block, protected=tls and token_path is not None)
    block.finish()
    members = Block(drivers, f"{path}/drivers")
    sandbox_id = members.text("sandbox")
    gateway_id = members.text("credential_gateway")
    if members.has("credential_refresh"):
        refuse(members.at("credential_refresh"), "INVALID_VALUE", "not offered")
    members.finish()
    return Backend(
        host=address.host,
        port=address.port,
        tls=tls,
        token_path=token_path,
        root_certificate_path=root,
        request_timeout_ms=timeout or DEFAULT_TIMEOUT_MS,
        sandbox_id=sandbox_id,
        credential_gateway_id=gateway_id,
    )


def _address(block: Block, control_namespace: str | None) -> tuple[_Address, str | None]:
    if block.has("endpoint") == block.has("serviceName"):
        refuse(block.at("endpoint"), "REQUIRED", "endpoint or serviceName, not both")
    if block.has("endpoint"):
        for key in ("scheme", "port"):
            if block.has(key):
                refuse(block.at(key), "INVALID_VALUE", "belongs to serviceName")
        address = parse_endpoint(block.text("endpoint"), block.at("endpoint"))
        return address, address.scheme
    where = block.at("serviceName")
    name = block.text("serviceName")
    scheme = block.choice("scheme", {"http": "http", "https": "https"}, "http")
    if scheme == "https" and not block.has("rootCertificatePath"):
        refuse(block.at("scheme"), "INVALID_VALUE", "https needs rootCertificatePath")
    port = block.number("port", 1, _MAX_PORT, _DEFAULT_SERVICE_PORT) or _DEFAULT_SERVICE_PORT
    if "." not in name:
        if control_namespace is None:
            refuse(where, "INVALID_VALUE", "a bare name needs a cluster")
        name = f"{name}.{control_namespace}.svc"
    return _Address(_host(name, where), port, scheme), scheme


def parse_endpoint(value: str, path: str) -> _Address:
    """Parse `host:port`, `[v6]:port` or an http(s) origin. Raises ConfigurationRefused."""
    scheme, origin = None, value
    if "://" in value:
        scheme = value.partition("://")[0]
        if scheme not in {"http", "https"}:
            refuse(path, "INVALID_FORMAT", "http or https")
        origin = value.partition("://")[2].removesuffix("/")
    parsed = _split(origin, path)
    if parsed.path or parsed.query or parsed.fragment or parsed.username is not None:
        refuse(path, "INVALID_FORMAT", "an origin without credentials, path, query or fragment")
    if "?" in value or "#" in value or "@" in value:
        refuse(path, "INVALID_FORMAT", "an origin without credentials, path, query or fragment")
    try:
        port = parsed.port
    except ValueError:
        refuse(path, "INVALID_FORMAT", "port 1..65535")
    if port is None:
        if scheme is None:
            refuse(path, "INVALID_FORMAT", "host:port")
        port = 443 if scheme == "https" else 80
    if not 1 <= port <= _MAX_PORT:
        refuse(path, "INVALID_FORMAT", "port 1..65535")
    return _Address(_host(parsed.hostname or "", path), port, scheme)


def _split(origin: str, path: str) -> SplitResult:
    try:
        return urlsplit(f"//{origin}")
    except ValueError:
        refuse(path, "INVALID_FORMAT", "a host")


def _host(host: str, path: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS.fullmatch(host):
        refuse(path, "INVALID_FORMAT", "a host")
    return host


def _token_path(block: Block) -> str | None:
    auth = block.block("auth")
    mode = auth.choice("mode", {m: m for m in ("unauthenticated", "bearerTokenFile")})
    path = None
    if mode == "bearerTokenFile":
        path = absolute_path(text(auth.text("path"), auth.at("path")), auth.at("path"))
    auth.finish()
    return path


def _acknowledgement(block: Block, *, protected: bool) -> None:
    given = block.has("insecureTransport")
    if given:
        block.choice("insecureTransport", {"network-policy": "network-policy"})
    if given and protected:
        refuse(block.at("insecureTransport"), "INVALID_VALUE", "the link is protected already")
    if not given and not protected:
        refuse(
            block.at("insecureTransport"),
            "REQUIRED",
            "the link is not TLS with a bearer token; 'network-policy' acknowledges that",
        )
