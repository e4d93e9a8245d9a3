"""Takes an engine's own address out of its redirects: it is inside the fleet, and clients cannot reach it. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

REFERENCES = frozenset((b"content-location", b"location"))
"""Headers of an answer that name an address."""


def without_own_address(reference: bytes, engine_url: str) -> bytes:
    """A reference to the engine's host or to loopback as its path and query, which a client resolves against the gateway.

    Frameworks make such references of the `Host` that the gateway sends, or of the address that they listen on: for a slash
    at the end of a path. References to other hosts, and those without one, are returned unchanged.

    Args:
        reference: value of one of `REFERENCES`.
        engine_url: `http://host:port`, as the gateway reaches it.
    """
    try:
        parts = urlsplit(reference.decode("ascii"))
        host = parts.hostname
    except ValueError:  # not ASCII, or no address: no client can follow it
        return reference
    if host is None or not (host == urlsplit(engine_url).hostname or _is_loopback(host)):
        return reference
    # With one slash: two would begin a host's name.
    return parts._replace(scheme="", netloc="", path=f"/{parts.path.lstrip('/')}").geturl().encode("ascii")


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
