"""The local certificate authority of one state directory, for the API and the Agent Gateway on loopback.

One CA, one server certificate each, made on first start. sandboxd has a CA of its own. Nothing here is trusted outside this machine:
the context file tells clients which CA to believe.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from oce.dev.files import write_private

if TYPE_CHECKING:
    from pathlib import Path

_LIFETIME: Final = dt.timedelta(days=825)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Files of one server certificate."""

    certificate: Path
    key: Path
    authority: Path


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def ensure_identity(
    directory: Path, name: str, dns_names: tuple[str, ...], now: dt.datetime
) -> ServerIdentity:
    """Return the server identity `name`, making CA and certificate when they are missing."""
    identity = ServerIdentity(
        directory / f"{name}.crt", directory / f"{name}.key", directory / "ca.crt"
    )
    authority_key = _ensure_authority(directory, now)
    if identity.certificate.exists() and identity.key.exists():
        return identity
    authority = x509.load_pem_x509_certificate(identity.authority.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(dns) for dns in dns_names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    certificate = (
        _builder(dns_names[0], authority.subject, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_private(identity.key, _private(key))
    write_private(identity.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return identity


def _ensure_authority(directory: Path, now: dt.datetime) -> ec.EllipticCurvePrivateKey:
    key_path, certificate_path = directory / "ca.key", directory / "ca.crt"
    if key_path.exists() and certificate_path.exists():
        loaded = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TypeError("the local CA's key is of another kind than we make")
        return loaded
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("OCE local CA")
    certificate = (
        _builder("OCE local CA", subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(key_path, _private(key))
    write_private(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return key
