"""`inventory.yaml`: the nodes of a fleet, the cables between them, and the address of its endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_interface
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparkfleet.errors import SpecError
from sparkfleet.specs.addresses import Address, Interface, ListenAddress, PortNumber, RailAddress, is_loopback
from sparkfleet.specs.deployment import EngineName
from sparkfleet.specs.fields import (
    AbsolutePath,
    Device,
    FrozenDict,
    HomePath,
    NodeName,
    PinnedKey,
    Problem,
    Spec,
    Unique,
    UserName,
    WebOrigin,
    Where,
    quote,
    refuse,
    unknown,
)
from sparkfleet.specs.timeouts import Timeouts


class Jump(Spec):
    """An SSH jump host on the way to a node."""

    address: Address
    """Its IP address or host name."""
    port: PortNumber = 22
    """Port of its SSH server."""
    user: UserName
    """The user to log in as."""
    host_key: PinnedKey
    """The fingerprint of its SSH host key ("SHA256:…"); any other key is refused."""
    identity_file: HomePath | None = None
    """Private key to log in with. Left out: the SSH agent and ~/.ssh/config decide."""


class EngineHome(Spec):
    """Location of an engine on a node."""

    python: AbsolutePath
    """The Python interpreter of the engine's environment on the node."""


class Node(Spec):
    """One machine, with its address and login."""

    address: Address
    """`local` for this machine; otherwise an IP address or host name for SSH."""
    user: UserName | None = None
    """The user to log in as. Required over SSH."""
    port: PortNumber = 22
    """Port of its SSH server."""
    host_key: PinnedKey | None = None
    """Fingerprint of its SSH host key ("SHA256:…"); any other key is refused. `sparkfleet init` finds it."""
    identity_file: HomePath | None = None
    """Private key to log in with. Left out: the SSH agent and ~/.ssh/config decide."""
    jump: Jump | None = None
    """A jump host on the way to the node."""
    engines: FrozenDict[EngineName, EngineHome] = FrozenDict()
    """Engines that are installed on the node, for deployments that run as processes."""

    @property
    def is_local(self) -> bool:
        """True if the node is this machine, reached without SSH."""
        return self.address == "local"

    def _problems(self) -> Iterator[Problem]:
        yield from self._local_problems() if self.is_local else self._ssh_problems()
        if "custom" in self.engines:
            yield Problem(
                ("engines", "custom"), "has no environment. Expected vllm, sglang, trtllm or llama.cpp."
            )

    def _local_problems(self) -> Iterator[Problem]:
        for name in ("user", "host_key", "identity_file", "jump"):
            if getattr(self, name) is not None:
                yield Problem((name,), "given, but `address: local` needs no SSH. Expected none.")
        if self.port != 22:
            yield Problem(("port",), "given, but `address: local` needs no SSH. Expected none.")

    def _ssh_problems(self) -> Iterator[Problem]:
        if self.user is None:
            yield Problem(("user",), "missing. Expected the user to log in as over SSH.")
        if self.host_key is None:
            expected = 'Expected the fingerprint of the node\'s SSH host key ("SHA256:…")'
            yield Problem(("host_key",), f"missing. {expected}; run `sparkfleet init` to read and pin it.")


class RailEnd(Spec):
    """One end of a rail: a netdev of one node."""

    netdev: Device
    """The network device, such as enp1s0f1np1."""
    rdma: Device | None = None
    """RoCE device that belongs to it, such as rocep1s0f1. Left out: the rail carries TCP only."""
    address: RailAddress
    """The address of the netdev with its prefix length, such as 192.168.100.10/24."""

    @property
    def interface(self) -> Interface:
        """The address with its subnet."""
        return ip_interface(self.address)


Rail = tuple[RailEnd, ...]
"""The ends of one rail, in the order of the link's nodes."""


class Link(Spec):
    """A cable between two nodes, or between a node and a switch. One QSFP cable is two rails."""

    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1, max_length=2)]
    """The two nodes at the ends of the cable, or the one node if the other end is a switch."""
    switch: NodeName | None = None
    """The switch at the other end of the cable: a name of your choice."""
    rails: Annotated[tuple[Rail, ...], Field(min_length=1, max_length=16)]
    """The rails of the cable. Each is a list with one end per node, in the order of `nodes`."""

    def _problems(self) -> Iterator[Problem]:
        if len(self.nodes) == 2 and self.nodes[0] == self.nodes[1]:
            yield Problem(("nodes", 1), f"found {quote(self.nodes[1])} twice. Expected another node.")
        if (len(self.nodes) == 1) == (self.switch is None):
            yield Problem(
                ("nodes",), "do not describe a cable. Expected two nodes, or one node and a `switch`."
            )
        for index, rail in enumerate(self.rails):
            yield from self._rail_problems(rail, ("rails", index))

    def _rail_problems(self, rail: Rail, at: Where) -> Iterator[Problem]:
        if len(rail) != len(self.nodes):
            ends = f"one end per node of the link ({', '.join(self.nodes)})"
            yield Problem(at, f"found {len(rail)} ends. Expected {ends}.")
            return
        for index, end in enumerate(rail[1:], start=1):
            where, first = (*at, index, "address"), rail[0].interface
            if end.interface.network != first.network:
                found = f"{end.address} is not in {first.network}, the subnet of the other end"
                yield Problem(where, f"{found}. Expected both ends of a rail in one subnet.")
            elif end.interface.ip == first.ip:
                found = f"{end.interface.ip} is also the address of the other end"
                yield Problem(where, f"{found}. Expected an address of its own.")


EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared, not bound)
ALL = "all"
"""In the gateway's `nodes`: every node."""


class EndpointTls(Spec):
    """A certificate and its key: PEM files on the head. Newer ones are used as soon as they are there."""

    cert: AbsolutePath | None = None
    """The certificate, followed by its chain."""
    key: AbsolutePath | None = None
    """Its private key, without a password."""

    def _problems(self) -> Iterator[Problem]:
        if (self.cert is None) != (self.key is None):
            missing = "cert" if self.cert is None else "key"
            yield Problem((missing,), "is missing. Expected both files, or `tls: generated`.")


def _endpoint_tls(given: Any) -> Any:
    """Expand `tls: generated`."""
    if isinstance(given, str):
        if given != "generated":
            refuse(
                [Problem((), f"found {quote(given)}. Expected `generated`, or `{{cert: PATH, key: PATH}}`.")]
            )
        return {}
    return given


def _node_names(given: Any) -> Any:
    """Expand `nodes: all`."""
    if isinstance(given, str):
        if given != ALL:
            refuse([Problem((), f"found {quote(given)}. Expected `all`, or a list of nodes.")])
        return (ALL,)
    return tuple(given) if isinstance(given, list) else given


class Gateway(Spec):
    """Address of the OpenAI endpoint."""

    host: ListenAddress = "127.0.0.1"
    """Address to listen on. 127.0.0.1: reachable from the head node only; 0.0.0.0: from the network."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on; 0: any free one."""
    max_body_mb: Annotated[int, Field(ge=1, le=4096)] = 32
    """Largest request body, MB (10^6 bytes). Larger ones get HTTP 413."""
    origins: Annotated[tuple[WebOrigin, ...], Unique(), Field(max_length=64)] = ()
    """Other sites whose scripts may use the endpoint in a browser (CORS): https://chat.example.org. Left out: none."""

    tls: Annotated[
        EndpointTls | None,
        BeforeValidator(_endpoint_tls, json_schema_input_type=Literal["generated"] | EndpointTls | None),
    ] = None
    """Certificate of the endpoint. `generated`: of the fleet's own authority, renewed by itself. Left out: no TLS."""
    nodes: Annotated[
        tuple[NodeName, ...],
        Unique(),
        BeforeValidator(_node_names, json_schema_input_type=Literal["all"] | tuple[NodeName, ...]),
    ] = ()
    """Nodes at whose addresses the endpoint is reached, beside the head: `all`, or a list of names. Left out: none."""

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return self.max_body_mb * 10**6

    @property
    def is_on_every_address(self) -> bool:
        """True if it listens on every address of the head."""
        return self.host in EVERY_ADDRESS

    def _problems(self) -> Iterator[Problem]:
        if self.nodes and is_loopback(self.host):
            found = f"given, but a gateway on {self.host} is reached on the head only"
            yield Problem(("nodes",), f"{found}. Expected `host: 0.0.0.0`, or no `nodes`.")


class Inventory(Spec):
    """The machines of a fleet and the cables between them."""

    fleet: NodeName
    """A name for the fleet: a-z, 0-9 and inner dashes."""
    head: NodeName
    """The node that runs the controller."""
    nodes: FrozenDict[NodeName, Node] = Field(json_schema_extra={"minProperties": 1})
    """The machines, by name."""
    links: Annotated[tuple[Link, ...], Field(max_length=4096)] = ()
    """The cables. `sparkfleet init` finds them."""
    gateway: Gateway = Gateway()
    """Address of the endpoint."""
    environment: AbsolutePath | None = None
    """Python of an environment with this version of sparkfleet that every node has, such as one on a shared disk. Left out:
    `sparkfleet up` makes one on each node."""
    lan_rendezvous: bool = False
    """Lets the ranks of a ring, which share no rail, meet on the management network although no firewall of the fleet
    closes its ports: PyTorch unpickles what is sent to the port where they meet, from any machine."""
    timeouts: Timeouts = Timeouts()
    """Waits before an engine is considered dead or started again."""

    def _problems(self) -> Iterator[Problem]:
        if not self.nodes:
            yield Problem(("nodes",), "is empty. Expected at least one node.")
        elif self.head not in self.nodes:
            yield Problem(("head",), unknown("node", self.head, self.nodes))
        for index, link in enumerate(self.links):
            for end, name in enumerate(link.nodes):
                if name not in self.nodes:
                    yield Problem(("links", index, "nodes", end), unknown("node", name, self.nodes))
        yield from self._same_machine()
        for node in self.nodes:
            yield from _crossed(node, tuple(self._rail_ends(node)))
        if self.head in self.nodes:
            yield from self._entry_problems()

    @property
    def entry_nodes(self) -> tuple[str, ...]:
        """Nodes beside the head at whose addresses the endpoint is reached, in the inventory's order."""
        named = self.gateway.nodes
        return tuple(node for node in self.nodes if node != self.head and (node in named or ALL in named))

    def endpoint_ports(self, present: int = 0) -> tuple[tuple[str, int], ...]:
        """Node and port at which the endpoint listens on loopback, as a custom workload does; none if any port will do.

        Args:
            present: the port that it has, and keeps with `port: 0`; 0: it has none yet.
        """
        gateway = self.gateway
        port = gateway.port or present
        if not port or not (gateway.is_on_every_address or is_loopback(gateway.host)):
            return ()
        return tuple((node, port) for node in (self.head, *self.entry_nodes))

    def entry_host(self, node: str) -> str | None:
        """The address of a node that corresponds to the gateway's on the head: every one, that of its login, or its end of
        the same rail. None if the inventory has none."""
        host, head = self.gateway.host, self.nodes[self.head]
        if self.gateway.is_on_every_address:
            return host
        if host == head.address:
            return None if self.nodes[node].is_local else self.nodes[node].address
        rails = {
            end.interface.network for _, end in self._rail_ends(self.head) if str(end.interface.ip) == host
        }
        ends = (end.interface for _, end in self._rail_ends(node))
        return next((str(one.ip) for one in ends if one.network in rails), None)

    def _entry_problems(self) -> Iterator[Problem]:
        for name in self.gateway.nodes:
            if name != ALL and name not in self.nodes:
                yield Problem(("gateway", "nodes"), unknown("node", name, self.nodes))
        if without := [node for node in self.entry_nodes if self.entry_host(node) is None]:
            found = f"the inventory has no address of {', '.join(without)} that corresponds to {self.gateway.host}"
            expected = f"Expected `host: 0.0.0.0`, or the address of {self.head} as the inventory has it"
            yield Problem(("gateway", "nodes"), f"{found}. {expected}.")

    def require_nodes(self, names: Iterable[str]) -> None:
        """Raise SpecError if a name is not one of a node."""
        for name in names:
            if name not in self.nodes:
                raise SpecError(unknown("node", name, self.nodes))

    def _same_machine(self) -> Iterator[Problem]:
        seen: dict[tuple[object, ...], str] = {}
        for name, node in self.nodes.items():
            first = seen.setdefault((node.address, node.port, node.jump), name)
            if first != name:
                found = f"{node.address} is already the address of node {first}"
                yield Problem(("nodes", name, "address"), f"{found}. Expected each machine once.")

    def _rail_ends(self, node: str) -> Iterator[tuple[Where, RailEnd]]:
        for link_index, link in enumerate(self.links):
            if node in link.nodes:
                end = link.nodes.index(node)
                for rail_index, rail in enumerate(link.rails):
                    yield ("links", link_index, "rails", rail_index, end), rail[end]


def _crossed(node: str, ends: tuple[tuple[Where, RailEnd], ...]) -> Iterator[Problem]:
    """Errors of a node: a device on two rails, or two rails in one subnet."""
    for field in ("netdev", "rdma"):
        seen: set[str] = set()
        for where, end in ends:
            device: str | None = getattr(end, field)
            if device in seen:
                found = f"{device} of {node} is already on another rail"
                yield Problem((*where, field), f"{found}. Expected one of its own.")
            seen |= {device} if device else set()
    yield from _one_subnet(node, ends)


def _one_subnet(node: str, ends: tuple[tuple[Where, RailEnd], ...]) -> Iterator[Problem]:
    """Errors of rails in one subnet: the kernel sends through one device per subnet, so the second rail would be idle."""
    outer = None
    for where, end in sorted(ends, key=lambda item: _order(item[1].interface)):
        network = end.interface.network
        # Subnets are nested or disjoint, so in this order the previous one is the only one to compare.
        if outer is not None and network.overlaps(outer):
            found = f"{end.address} is in {outer}, the subnet of another rail of {node}"
            yield Problem((*where, "address"), f"{found}. Expected a subnet of its own for each rail.")
        else:
            outer = network


def _order(interface: Interface) -> tuple[int, int, int]:
    network = interface.network
    return (network.version, int(network.network_address), network.prefixlen)
