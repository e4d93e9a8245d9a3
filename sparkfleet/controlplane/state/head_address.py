"""The address of a fleet's head: Ray, the controller, the dashboard ports."""

from __future__ import annotations

import contextlib
import socket

from pydantic import ValidationError

from sparkfleet.gateway.listening import GatewayListening, GatewayTls
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Gateway
from sparkfleet.values import Value

LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of nobody (RFC 5737): the kernel chooses the interface of its default route for it."""


def name_on_network() -> str:
    """This machine's address on its default route, under which others reach it; loopback if it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(_ELSEWHERE)  # of a datagram socket: chooses a route, sends no packet
            return str(asking.getsockname()[0])
        except OSError:
            return LOOPBACK


class HeadMove(Value):
    """A move of the head."""

    to: str
    """Name of the new head."""
    token: str
    """Distinguishes the processes that this move has started from all others."""


class HeadAddress(Value):
    """Addresses of a fleet's head. Chosen once and stored, so that they survive a restart."""

    ray: str
    api: str
    gateway_host: str
    gateway_port: int
    name: str = LOOPBACK
    """The head's name for clients if the gateway listens on every interface."""

    max_body_bytes: int = 0
    """Longest request; 0: an earlier release stored this address."""
    origins: tuple[str, ...] = ()
    """Origins of other sites whose scripts may read the gateway's answers."""
    tls: GatewayTls | None = None
    """None: HTTP without TLS."""

    @property
    def listening(self) -> GatewayListening | None:
        """Address and limit of the gateway; None if an earlier release stored this address."""
        if not self.max_body_bytes:
            return None
        return GatewayListening(
            host=self.gateway_host,
            port=self.gateway_port,
            max_body_bytes=self.max_body_bytes,
            origins=self.origins,
            tls=self.tls,
        )

    @property
    def scheme(self) -> str:
        """Scheme of the endpoint's URLs."""
        return "http" if self.tls is None else "https"

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients."""
        host = self.name if self.gateway_host == "0.0.0.0" else self.gateway_host  # noqa: S104 (compared, not bound)
        return f"{self.scheme}://{host}:{self.gateway_port}/v1"

    @property
    def is_private(self) -> bool:
        """True if only programs on the head itself reach the gateway."""
        return self.gateway_host.startswith("127.") or self.gateway_host in ("localhost", "::1")


def gateway_tls(gateway: Gateway, *names: str) -> GatewayTls | None:
    """The endpoint's certificate as the inventory has it. `names`: those of the head, for a generated one."""
    if gateway.tls is None:
        return None
    if gateway.tls.cert is not None and gateway.tls.key is not None:
        return GatewayTls(cert=gateway.tls.cert, key=gateway.tls.key)
    return GatewayTls(names=tuple(sorted({gateway.host, *names} - {"0.0.0.0", "::"})))  # noqa: S104 (compared, not bound)


def write_address(paths: FleetPaths, address: HeadAddress) -> None:
    """Stores the address and its copy in the run directory."""
    for path in (paths.address, paths.run_address):
        write_atomically(path, address.for_disk().encode())


def read_address(paths: FleetPaths) -> HeadAddress | None:
    """The stored address, or its copy in the run directory; None if neither can be read."""
    for path in (paths.address, paths.run_address):
        with contextlib.suppress(OSError, ValidationError):
            return HeadAddress.model_validate_json(path.read_bytes())
    return None
