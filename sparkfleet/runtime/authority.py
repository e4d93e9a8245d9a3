"""A certificate authority of the fleet, derived from a secret that its nodes share.

Every process with the secret has the same authority, so nothing but the secret is distributed, and clients that trust the
authority go on trusting it if the head moves. Its certificate is public and has no secret in it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

_CURVE = ec.SECP256R1()
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SINCE = datetime(2000, 1, 1, tzinfo=UTC)
"""Begin of the authority's validity: the same in each of its certificates, and before any clock, also that of a node which
was off for long and has not yet asked for the time."""
_UNTIL = datetime(2055, 1, 1, tzinfo=UTC)
_PEM = serialization.Encoding.PEM
_SIGNS_ONLY = x509.KeyUsage(
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


class IssuedCertificate(NamedTuple):
    """A certificate and its private key, as PEM."""

    key: bytes
    certificate: bytes


class FleetAuthority:
    """The authority of one purpose.

    Args:
        secret: from which its key is derived.
        purpose: its use, such as "endpoint": two purposes have two authorities.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        seed = hmac.new(secret, f"sparkfleet {purpose} authority\0".encode(), hashlib.sha512).digest()
        self._key = ec.derive_private_key(1 + int.from_bytes(seed) % (_P256_ORDER - 1), _CURVE)
        self._certificate = _own(self._key)

    def pem(self) -> bytes:
        """The certificate, for those who trust it."""
        return self._certificate.public_bytes(_PEM)

    def issue(
        self,
        subject: str,
        names: Sequence[x509.GeneralName],
        days: int | None,
        usages: Iterable[ObjectIdentifier],
    ) -> IssuedCertificate:
        """A new key with a certificate.

        Args:
            subject: its common name.
            names: host names and addresses for which it is valid.
            days: its validity, from yesterday on; None: the authority's own, whatever this machine's clock.
            usages: of X.509's extended key usages.
        """
        key = ec.generate_private_key(_CURVE)
        now = datetime.now(UTC)
        since = _SINCE if days is None else now - timedelta(days=1)
        until = _UNTIL if days is None else now + timedelta(days=days)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return IssuedCertificate(private, made.public_bytes(_PEM))

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """True if the certificate is one of its own."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # of another authority, or with another kind of key
            return False
        return True


def names_of_this_host(names: Sequence[str]) -> list[x509.GeneralName]:
    """Names and addresses for a certificate of this machine: the given ones, its host name and loopback."""
    host = socket.gethostname()
    texts = dict.fromkeys((*names, "localhost", "127.0.0.1", "::1", host, f"{host.partition('.')[0]}.local"))
    found: list[x509.GeneralName] = []
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            if text.isascii() and text:
                found.append(x509.DNSName(text))
            continue
        if not address.is_unspecified:
            found.append(x509.IPAddress(address))
    return found


def _own(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    name = _name(f"sparkfleet fleet authority {identifier.digest.hex()[:8]}")
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(int.from_bytes(identifier.digest[:16]))
        .not_valid_before(_SINCE)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(_SIGNS_ONLY, critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
