"""Certificates of the endpoint: given files, or ones of the fleet's own authority. Changed files are read while it serves.

The authority's key is derived from the fleet's engine secret, which every node has: the authority stays the same if the
head moves, and clients go on trusting it. Its certificate is public and has no secret in it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sparkfleet.errors import ControlError
from sparkfleet.gateway.listening import GatewayTls
from sparkfleet.gateway.report import EndpointCertificate
from sparkfleet.remote.atomic_write import write_atomically

_CURVE = ec.SECP256R1()
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SINCE = datetime(2025, 1, 1, tzinfo=UTC)
"""Begin of the authority's validity: the same in each of its certificates."""
_AUTHORITY_DAYS = 30 * 365
DAYS = 397
"""Validity of a generated certificate: the most that Apple's clients accept (support.apple.com/102028: 398 days, and 825 for
those of an authority that the owner has added)."""
RENEW_DAYS = 30
"""Days before its end at which a generated certificate is replaced."""
_PRIVATE = 0o600


class CertificateStore:
    """The certificate that a gateway presents, and the context that has it.

    Args:
        tls: the inventory's choice.
        directory: generated certificates are stored here.
        secret: the fleet's engine secret.

    Raises:
        ControlError: the files cannot be used.
    """

    def __init__(self, tls: GatewayTls, directory: Path, secret: bytes) -> None:
        self._tls = tls
        self._directory = directory
        self._secret = secret
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.trouble = ""
        """Reason why newer files are not used; "" for none."""
        self._prepare()
        self.present = self._load()
        """The certificate in use."""
        self._read = self._state()

    def refresh(self) -> None:
        """Reads files that have changed, and renews a generated certificate. New connections get it; others go on.

        Files that cannot be used leave the certificate as it is, and give `trouble`.
        """
        try:
            self._prepare()
            state = self._state()
            if state != self._read:
                self.present = self._load()
                self._read = state
            self.trouble = ""
        except (ControlError, OSError) as error:
            self.trouble = error.what if isinstance(error, ControlError) else str(error)

    def _prepare(self) -> None:
        if self._tls.is_generated:
            _issue(self._directory, self._secret, self._tls.names)

    @property
    def _files(self) -> tuple[Path, Path]:
        if self._tls.is_generated:
            return (self._directory / "endpoint.pem",) * 2
        return Path(self._tls.cert), Path(self._tls.key)

    def _state(self) -> tuple[tuple[int, int], ...]:
        infos = [path.stat() for path in self._files]
        return tuple((info.st_mtime_ns, info.st_ino) for info in infos)

    def _load(self) -> EndpointCertificate:
        certificate, key = self._files
        found = check_files(certificate, key)
        self.context.load_cert_chain(certificate, key)
        authority = (self._directory / "authority.pem").read_text() if self._tls.is_generated else ""
        return EndpointCertificate(
            expires_at=found.not_valid_after_utc.timestamp(),
            sha256=found.fingerprint(hashes.SHA256()).hex(),
            authority=authority,
        )


def check_files(certificate: Path, key: Path) -> x509.Certificate:
    """The first certificate of a file, if it and its key can serve.

    Raises:
        ControlError: a file is missing or is something else, they do not belong together, or the certificate has expired.
    """
    try:
        found = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ControlError(
            f"The endpoint's certificate {certificate} with the key {key} cannot be used: {_reason(error)}.",
            means="The endpoint would have no TLS, so nothing was changed.",
            do="`gateway: {tls: {cert: …, key: …}}` needs PEM files on the head, a chain and its key without a password; "
            "`tls: generated` makes both.",
        ) from error
    if found.not_valid_after_utc <= datetime.now(UTC):
        raise ControlError(
            f"The endpoint's certificate {certificate} expired on {found.not_valid_after_utc:%Y-%m-%d}.",
            means="Clients refuse it, so nothing was changed.",
            do="Renew it, or use `gateway: {tls: generated}`.",
        )
    return found


def _no_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


# The fleet's own authority


def _issue(directory: Path, secret: bytes, names: Sequence[str]) -> None:
    """Stores a certificate of the authority for `names`, unless a good one is there."""
    wanted = _alternative_names(names)
    path = directory / "endpoint.pem"
    if _is_good(path, secret, wanted):
        return
    authority_key = _authority_key(secret)
    authority = _authority(authority_key)
    key = ec.generate_private_key(_CURVE)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_name("sparkfleet endpoint"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(wanted), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(directory / "authority.pem", authority.public_bytes(pem))
    write_atomically(path, private + made.public_bytes(pem) + authority.public_bytes(pem))


def _is_good(path: Path, secret: bytes, wanted: Sequence[x509.GeneralName]) -> bool:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found.verify_directly_issued_by(_authority(_authority_key(secret)))
    except Exception:  # missing, of something else, or of another secret
        return False
    left = found.not_valid_after_utc - datetime.now(UTC)
    return set(wanted) <= set(names) and left > timedelta(days=RENEW_DAYS)


def _authority_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    seed = hmac.new(secret, b"sparkfleet endpoint authority\0", hashlib.sha512).digest()
    return ec.derive_private_key(1 + int.from_bytes(seed) % (_P256_ORDER - 1), _CURVE)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(f"sparkfleet fleet authority {identifier.digest.hex()[:8]}"))
        .issuer_name(_name(f"sparkfleet fleet authority {identifier.digest.hex()[:8]}"))
        .public_key(public)
        .serial_number(int.from_bytes(identifier.digest[:16]))
        .not_valid_before(_SINCE)
        .not_valid_after(_SINCE + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(_SIGNS_ONLY, critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )


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


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
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
