"""TLS between Ray's processes.

Ray's token authenticates its clients and encrypts nothing, its gRPC servers listen on every address, read whole messages
before they look for a token, and answer two services to everybody (`grpc.reflection`, `grpc.channelz`). With TLS nothing is
read from those without a certificate of the fleet's authority, which each node derives from Ray's token: what joins needs
the token, as before. The head's certificate has its term: a former head that comes back reads it there, before it acts.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.authority import FleetAuthority, names_of_this_host
from sparkfleet.runtime.files.fleet_paths import FleetPaths

_HEAD = "sparkfleet head of term"
_MOVE = ".move.sparkfleet.invalid"


def prepare_tls(paths: FleetPaths, host: str, term: int | None = None, move: str = "") -> None:
    """Stores a new certificate of this node for the next start of Ray, which reads it only then.

    Args:
        paths: the fleet's directories on this node, with Ray's token.
        host: this node's address towards the other nodes.
        term: of this head; None on any other node.
        move: token of the move that starts this head, which has not taken over yet.
    """
    authority = FleetAuthority(paths.ray_token.read_bytes().strip(), "ray")
    usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    moves = (f"{move}{_MOVE}",) if move else ()  # not in the subject, which earlier releases read as a whole
    names = names_of_this_host((host, *_addresses(host), *moves))
    subject = "sparkfleet ray" if term is None else f"{_HEAD} {term}"
    made = authority.issue(subject, names, None, usages)
    write_atomically(paths.ray_tls / "authority.pem", authority.pem())
    write_atomically(paths.ray_tls / "key.pem", made.key)
    write_atomically(paths.ray_tls / "certificate.pem", made.certificate)


def tls_environment(paths: FleetPaths) -> dict[str, str]:
    """Ray's settings for it; none before its certificate is made."""
    certificate = paths.ray_tls / "certificate.pem"
    if not certificate.exists():
        return {}
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(paths.ray_tls / "key.pem"),
        "RAY_TLS_CA_CERT": str(paths.ray_tls / "authority.pem"),
    }


def client_context(paths: FleetPaths) -> ssl.SSLContext:
    """Verifies that a server has a certificate of the fleet, and shows this node's own, which Ray requires.

    Names are not compared: the fleet's certificates are for its own nodes only, whose addresses may have changed.

    Raises:
        OSError: this node has no certificate yet, or it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])  # gRPC refuses others
    context.load_verify_locations(paths.ray_tls / "authority.pem")
    context.load_cert_chain(paths.ray_tls / "certificate.pem", paths.ray_tls / "key.pem")
    return context


def term_in(certificate: bytes) -> int | None:
    """The term in a head's certificate, DER; None if it is another node's."""
    subject = x509.load_der_x509_certificate(certificate).subject
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    found = re.fullmatch(rf"{_HEAD} ([0-9]+)", str(names[0].value)) if names else None
    return int(found[1]) if found else None


def move_in(certificate: bytes) -> str:
    """The token of the move that has started the head of a certificate, DER; "" for a head that was started otherwise."""
    found = x509.load_der_x509_certificate(certificate).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return next(
        (
            name.removesuffix(_MOVE)
            for name in names.get_values_for_type(x509.DNSName)
            if name.endswith(_MOVE)
        ),
        "",
    )


def _addresses(host: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)})
    return []
