"""The interception CA of one Sandbox, and the TLS contexts of its leaves.

Each Sandbox trusts only its own CA, so that a leaf of one is worth nothing in another. The CA's key is a 0600 file of this
process, so that a restart keeps the trust. Leaves share one key that lives in memory, are minted per name on first use, are
cached, and minting has a rate: a workload that asks for thousands of names runs dry, not the process.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import ssl
from collections import OrderedDict
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from oce.sandboxd.egress.vault import write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_LEAVES = 256
MINT_BURST = 64
MINT_PER_SECOND = 4.0

_DAY = dt.timedelta(days=1)
_CA_DAYS = 3650
_LEAF_DAYS = 7
_LEAF_USE_SECONDS = 3 * 86400.0
_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_COMMON_NAME_MAX = 64


class MintLimitError(Exception):
    """The Sandbox asks for new names faster than leaves are minted."""


class Authority:
    """CA of one Sandbox, made on first use and loaded afterwards."""

    def __init__(self, directory: Path, sandbox_id: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        path = authority_file(directory, sandbox_id)
        try:
            pem = path.read_bytes()
        except FileNotFoundError:
            pem = _new_authority()
            write_private(path, pem)
        key = serialization.load_pem_private_key(pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("the Sandbox CA file does not hold an elliptic-curve key")
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(pem)
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_pem = _private_pem(self._leaf_key)
        self._contexts: OrderedDict[str, tuple[ssl.SSLContext, float]] = OrderedDict()
        self._tokens = float(MINT_BURST)
        self._refilled = clock()

    @property
    def certificate(self) -> bytes:
        """PEM of the CA certificate, without key."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, name: str) -> ssl.SSLContext:
        """Return the server context for a name or IP literal. Raises MintLimitError."""
        now = self._clock()
        known = self._contexts.get(name)
        if known is not None and now - known[1] < _LEAF_USE_SECONDS:
            self._contexts.move_to_end(name)
            return known[0]
        self._spend(now)
        context = self._mint(name)
        self._contexts[name] = (context, now)
        if len(self._contexts) > MAX_LEAVES:
            self._contexts.popitem(last=False)
        return context

    def _spend(self, now: float) -> None:
        earned = (now - self._refilled) * MINT_PER_SECOND
        self._tokens = min(float(MINT_BURST), self._tokens + earned)
        self._refilled = now
        if self._tokens < 1:
            raise MintLimitError
        self._tokens -= 1

    def _mint(self, name: str) -> ssl.SSLContext:
        now = dt.datetime.now(dt.UTC)
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_common_name(name))
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _LEAF_DAYS * _DAY)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _server_context(
            certificate.public_bytes(serialization.Encoding.PEM) + self._leaf_pem
        )


def authority_file(directory: Path, sandbox_id: str) -> Path:
    """Return where a Sandbox's CA lies. Raises ValueError for an id that is no file name."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise ValueError("not a sandbox id")
    return directory / f"{sandbox_id}.pem"


def _server_context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # `load_cert_chain` wants a path; a memory file keeps the key off the disk.
    descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _new_authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    name = _common_name("OCE Sandbox CA")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _CA_DAYS * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_MAX])])
