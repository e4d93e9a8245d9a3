"""TLS between Ray's processes.

Ray's token authenticates its clients and encrypts nothing, its gRPC servers listen on every address, read whole messages
before they look for a token, and answer two services to everybody (`grpc.reflection`, `grpc.channelz`). With TLS nothing is
read from those without a certificate of the fleet's authority, which each node derives from Ray's token: what joins needs
the token, as before.
"""

from __future__ import annotations

import contextlib
import socket

from cryptography.x509.oid import ExtendedKeyUsageOID

from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.authority import FleetAuthority, names_of_this_host
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def prepare_tls(paths: FleetPaths, host: str) -> None:
    """Stores a new certificate of this node for the next start of Ray, which reads it only then.

    Args:
        paths: the fleet's directories on this node, with Ray's token.
        host: this node's address towards the other nodes.
    """
    authority = FleetAuthority(paths.ray_token.read_bytes().strip(), "ray")
    usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    names = names_of_this_host((host, *_addresses(host)))
    made = authority.issue("sparkfleet ray", names, None, usages)
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


def _addresses(host: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)})
    return []
