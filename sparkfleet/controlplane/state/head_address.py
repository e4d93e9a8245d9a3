"""The address of a fleet's head: Ray, the controller, the dashboard ports."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

from pydantic import ValidationError

from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.gateway.listening import GatewayEntry, GatewayListening, GatewayTls
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.addresses import is_loopback
from sparkfleet.specs.inventory import EVERY_ADDRESS, Gateway, Inventory
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
    entries: tuple[GatewayEntry, ...] = ()
    """Of the nodes at whose addresses the endpoint is reached, too."""
    term: int = 0
    """Number of moves of the head before this one: of two heads of a fleet, the one of the higher term is the head."""

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
        return self._url(self.gateway_host, self.name)

    def endpoint_at(self, entry: GatewayEntry) -> str:
        """The same under the address of an entry's node."""
        return self._url(entry.host, entry.name)

    def endpoint_ports(self, head: str) -> tuple[tuple[str, int], ...]:
        """Node and port at which the endpoint listens on loopback, as `Inventory.endpoint_ports`. `head`: its node."""
        if self.gateway_host not in EVERY_ADDRESS and not is_loopback(self.gateway_host):
            return ()
        return tuple((node, self.gateway_port) for node in (head, *(one.node for one in self.entries)))

    def _url(self, host: str, name: str) -> str:
        shown = name if host in EVERY_ADDRESS else host
        return f"{self.scheme}://{f'[{shown}]' if ':' in shown else shown}:{self.gateway_port}/v1"

    @property
    def is_private(self) -> bool:
        """True if only programs on the head itself reach the gateway."""
        return self.gateway_host.startswith("127.") or self.gateway_host in ("localhost", "::1")


def gateway_tls(gateway: Gateway, *names: str, entries: Iterable[GatewayEntry] = ()) -> GatewayTls | None:
    """The endpoint's certificate as the inventory has it; a generated one for the head's `names` and the entries' own."""
    if gateway.tls is None:
        return None
    if gateway.tls.cert is not None and gateway.tls.key is not None:
        return GatewayTls(cert=gateway.tls.cert, key=gateway.tls.key)
    beside = {name for one in entries for name in (one.node, one.name, one.host)}
    return GatewayTls(names=tuple(sorted({gateway.host, *names, *beside} - EVERY_ADDRESS)))


def gateway_entries(inventory: Inventory) -> tuple[GatewayEntry, ...]:
    """The entries that the inventory names. None is on the head or reaches the gateway over loopback, which it trusts.

    Raises:
        ControlError: as `node_addresses`.
    """
    gateway, names = inventory.gateway, inventory.entry_nodes
    if not names:
        return ()
    addresses = node_addresses(inventory)
    target = addresses[inventory.head].address if gateway.is_on_every_address else gateway.host
    return tuple(
        GatewayEntry(
            node=name,
            host=inventory.entry_host(name) or gateway.host,
            name=addresses[name].address if inventory.nodes[name].is_local else inventory.nodes[name].address,
            target=target,
        )
        for name in names
    )


def write_address(paths: FleetPaths, address: HeadAddress) -> None:
    """Stores the address and its copy in the run directory."""
    for path in (paths.address, paths.run_address):
        write_atomically(path, address.for_disk().encode(), durable=True)


def read_address(paths: FleetPaths) -> HeadAddress | None:
    """The stored address, or its copy in the run directory; None if neither can be read."""
    for path in (paths.address, paths.run_address):
        with contextlib.suppress(OSError, ValidationError):
            return HeadAddress.model_validate_json(path.read_bytes())
    return None
