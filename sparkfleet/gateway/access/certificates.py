"""Certificates of the endpoint: given files, or ones of the fleet's own authority. Changed files are read while it serves.

The authority's key is derived from the fleet's engine secret (`runtime/authority.py`).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from sparkfleet.errors import ControlError
from sparkfleet.gateway.listening import GatewayTls
from sparkfleet.gateway.report import EndpointCertificate
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.authority import FleetAuthority, names_of_this_host

DAYS = 397
"""Validity of a generated certificate: the most that Apple's clients accept (support.apple.com/102028: 398 days, and 825 for
those of an authority that the owner has added)."""
RENEW_DAYS = 30
"""Days before its end at which a generated certificate is replaced."""


class CertificateStore:
    """The certificate that a gateway presents, and the context that has it.

    Args:
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
    wanted = names_of_this_host(names)
    path = directory / "endpoint.pem"
    authority = FleetAuthority(secret, "endpoint")
    if _is_good(path, authority, wanted):
        return
    made = authority.issue("sparkfleet endpoint", wanted, DAYS, [ExtendedKeyUsageOID.SERVER_AUTH])
    write_atomically(directory / "authority.pem", authority.pem())
    write_atomically(path, made.key + made.certificate + authority.pem())


def _is_good(path: Path, authority: FleetAuthority, wanted: Sequence[x509.GeneralName]) -> bool:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # missing, or something else
        return False
    left = found.not_valid_after_utc - datetime.now(UTC)
    return authority.has_issued(found) and set(wanted) <= set(names) and left > timedelta(days=RENEW_DAYS)
