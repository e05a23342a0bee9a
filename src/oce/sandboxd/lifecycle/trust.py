"""The certificates a Sandbox trusts besides its own CA: those this machine trusts."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import certifi

_USUAL = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


@cache
def host_roots() -> bytes:
    """Return the host's trusted roots as PEM, or certifi's when the host has none."""
    default = ssl.get_default_verify_paths().cafile
    for candidate in (*([default] if default else []), *_USUAL, certifi.where()):
        path = Path(candidate)
        if path.is_file():
            content = path.read_bytes()
            return content if content.endswith(b"\n") else content + b"\n"
    return b""
