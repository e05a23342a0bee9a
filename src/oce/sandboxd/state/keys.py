"""Identities of one gateway: its own CA, a server and a client certificate, and the control plane's token.

Made on the first start, never unauthenticated (reference/openshell-gateway.md c.12, 0.1.6). Private files are written 0600 by
exclusive creation and then moved into place, so that a crash leaves the old file or none.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

_LIFETIME = timedelta(days=3650)
_CLIENT_NAME = "local-user"


@dataclass(frozen=True, slots=True)
class Keys:
    """Paths of the gateway's identity files."""

    folder: Path

    @property
    def ca(self) -> Path:
        """CA certificate that clients trust."""
        return self.folder / "ca.crt"

    @property
    def server_certificate(self) -> Path:
        """The front door's certificate."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """Its key."""
        return self.folder / "server.key"

    @property
    def client_certificate(self) -> Path:
        """Certificate of the user (SDK, command line)."""
        return self.folder / "client.crt"

    @property
    def client_key(self) -> Path:
        """Its key."""
        return self.folder / "client.key"

    @property
    def token(self) -> Path:
        """Bearer token of the control plane."""
        return self.folder / "control-plane.token"

    @property
    def fingerprint_key(self) -> Path:
        """Key of the request ledger's digests."""
        return self.folder / "ledger.key"

    def control_plane_token(self) -> str:
        """Read the token."""
        return self.token.read_text(encoding="ascii").strip()


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file atomically with a mode; a reader sees the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def ensure_keys(folder: Path, service_domain: str) -> Keys:
    """Make what is missing. The CA's key is not kept: a new identity means removing the folder."""
    keys = Keys(folder)
    if not keys.token.exists():
        write_private(keys.token, secrets.token_urlsafe(32).encode() + b"\n")
    if not keys.fingerprint_key.exists():
        write_private(keys.fingerprint_key, secrets.token_bytes(32))
    pairs = (keys.ca, keys.server_certificate, keys.server_key, keys.client_certificate)
    if not all(path.exists() for path in (*pairs, keys.client_key)):
        _make_certificates(keys, service_domain)
    return keys


def _make_certificates(keys: Keys, service_domain: str) -> None:
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("sandboxd local CA")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signing=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("localhost"),
            x509.DNSName(service_domain),
            x509.DNSName(f"*.{service_domain}"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
    )
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = (
        _leaf(ca, server_key, "sandboxd", ExtendedKeyUsageOID.SERVER_AUTH)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    client_key = ec.generate_private_key(ec.SECP256R1())
    client = _leaf(ca, client_key, _CLIENT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH).sign(
        ca_key, hashes.SHA256()
    )
    write_private(keys.server_key, _key_pem(server_key))
    write_private(keys.client_key, _key_pem(client_key))
    write_private(keys.server_certificate, _pem(server), 0o644)
    write_private(keys.client_certificate, _pem(client), 0o644)
    write_private(keys.ca, _pem(ca), 0o644)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _leaf(
    ca: x509.Certificate, key: ec.EllipticCurvePrivateKey, common: str, use: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    ca_key = ca.public_key()
    if not isinstance(ca_key, ec.EllipticCurvePublicKey):
        raise TypeError("the CA's key is an elliptic curve key")
    return (
        _builder(_name(common), ca.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signing=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key), critical=False)
    )


def _usage(*, signing: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signing,
        crl_sign=signing,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
