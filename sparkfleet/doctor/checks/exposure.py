"""Exposure to the network: only the gateway may be reachable, no other process of sparkfleet or an engine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import CheckFault, error, note, warning
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.fabric.rails_helper import CLOSED
from sparkfleet.hostfacts.memory import Kernel
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket

ENGINES = re.compile(
    r"(vllm|sglang|trtllm|tritonserver|llama-server|ray::|gcs_server|raylet|raylet_agent|dashboard|ray)",
    re.IGNORECASE,
)
RAY = re.compile(r"(ray::|gcs_server|raylet)", re.IGNORECASE)
"""Ray's processes with gRPC ports: Ray 2.60 binds them to every address; in a fleet they require its token."""
RAY_PORTS = {6379: "Ray's GCS", 8265: "Ray's dashboard", 10001: "Ray's client server", 52365: "Ray's agent"}
"""Ray's default ports: a client that reaches them can run code as this user."""
METRICS_PORTS = {44217: "metrics of Ray's autoscaler", 44227: "metrics of Ray's dashboard"}
"""Ray opens them on every address, and has no setting for that (AUTOSCALER_METRIC_PORT, DASHBOARD_METRIC_PORT)."""


@node_check("exposed-ports", "only the gateway can be reached from the network", source="the fleet's rule")
def exposed_ports(
    node: NodeSnapshot, sockets: tuple[ListeningSocket, ...], fleet: FleetReadings
) -> Iterator[CheckFault]:
    """Reports sockets on every address or on the management network; loopback and rails are fine."""
    ours: dict[str, set[int]] = defaultdict(set)
    tokened: set[int] = set()
    shared: dict[str, set[int]] = defaultdict(set)
    closed: set[int] = set()
    for socket in sockets:
        if _fine(socket, node, fleet):
            continue
        if _is_closed(socket, node):
            closed.add(socket.port)
            continue
        where = "on every address" if socket.anywhere else f"on {socket.address}"
        who = f"{socket.process or 'a process of sparkfleet'} listens {where}"
        if socket.port in METRICS_PORTS or (socket.port in RAY_PORTS and not _is_ours(socket, node)):
            yield _known_port(node, socket, where)
        elif _requires_the_token(socket, node):
            tokened.add(socket.port)
        elif _is_ours(socket, node):
            (ours if socket.anywhere or _joined(fleet) else shared)[who].add(socket.port)
    if closed:
        yield _behind_the_firewall(node, closed)
    if tokened:
        yield _behind_the_token(node, tokened, fleet)
    for who, ports in ours.items():
        yield _exposed(node, who, ports, fleet)
    if shared:
        yield _without_rails(node, shared)


def _exposed(node: NodeSnapshot, who: str, ports: set[int], fleet: FleetReadings) -> CheckFault:
    return error(
        f"{node.name}: {who}, {_ports(ports)}",
        means="The management network reaches it without an API key. For the rendezvous of ranks, PyTorch"
        " listens on every address and has no setting for that; only a firewall closes the port.",
        do=(
            f"ss -ltnp 'sport = :{min(ports)}'",
            "sparkfleet down && sparkfleet up   # binds to loopback and the rails",
            *_firewall(node, fleet),
        ),
    )


def _is_closed(socket: ListeningSocket, node: NodeSnapshot) -> bool:
    """True if the rules of `fabric firewall` on the node close the socket's port."""
    has_rules = node.kernel is not None and node.kernel.fleet_firewall
    return has_rules and CLOSED[0] <= socket.port <= CLOSED[1]


def _behind_the_firewall(node: NodeSnapshot, ports: set[int]) -> CheckFault:
    return note(
        f"{node.name}: the rules of `sparkfleet fabric firewall` close {len(ports)} listening ports to other machines",
        means="Only root can read if the rules are loaded: `fabric firewall` shows it.",
        do="sparkfleet fabric firewall",
    )


def _firewall(node: NodeSnapshot, fleet: FleetReadings) -> tuple[str, ...]:
    """Commands that close the fleet's ports, or leave only SSH and the rails open."""
    return (
        "sparkfleet fabric firewall --apply   # closes the fleet's ports to all machines but the nodes; or, with ufw:",
        "sudo ufw allow OpenSSH",
        *(f"sudo ufw allow in on {netdev}" for netdev in sorted(fleet.rail_netdevs(node.name))),
        "sudo ufw default deny incoming && sudo ufw enable   # and `sudo ufw allow` the gateway's port, if it is open",
    )


def _behind_the_token(node: NodeSnapshot, ports: set[int], fleet: FleetReadings) -> CheckFault:
    # Ray chooses ports at each start: in the sentence they would keep it from being shown once for all nodes.
    return warning(
        f"{node.name}: Ray listens on every address",
        means="Ray requires the fleet's token, but its ports can be reached; Ray has no setting for the address.",
        do=_firewall(node, fleet),
        ports=", ".join(map(str, sorted(ports))),
    )


def _requires_the_token(socket: ListeningSocket, node: NodeSnapshot) -> bool:
    """True for Ray's own processes that sparkfleet started, because it always gives them a token."""
    ours = {one.pid for one in node.processes or () if one.ours}
    return socket.pid in ours and RAY.match(socket.process) is not None


def _without_rails(node: NodeSnapshot, shared: dict[str, set[int]]) -> CheckFault:
    listed = "; ".join(f"{who}, {_ports(ports)}" for who, ports in list(shared.items())[:3])
    return warning(
        f"{node.name}: {listed}{' …' if len(shared) > 3 else ''}",
        means="No rail joins all nodes, so Ray and engines use the management network. Ray and the engines' HTTP servers"
        " require their tokens; traffic between ranks is neither encrypted nor authenticated.",
        do=(
            "sparkfleet fabric firewall --apply   # closes these ports to all machines but the nodes",
            "Use a private management network, or join the nodes by a switch and run `sparkfleet fabric apply`.",
        ),
    )


def _known_port(node: NodeSnapshot, socket: ListeningSocket, where: str) -> CheckFault:
    metrics = METRICS_PORTS.get(socket.port)
    return warning(
        f"{node.name}: port {socket.port} ({metrics or RAY_PORTS[socket.port]}) is open {where}",
        means="Anybody on the network can read these metrics, but change nothing."
        if metrics
        else "If it is Ray, anybody on the network can run code as its user. Its process could not be read.",
        do=f"sudo ss -ltnp 'sport = :{socket.port}'",
    )


def _ports(ports: set[int]) -> str:
    listed = ", ".join(str(port) for port in sorted(ports)[:6])
    return f"port{'s' if len(ports) > 1 else ''} {listed}{' …' if len(ports) > 6 else ''}"


def _joined(fleet: FleetReadings) -> bool:
    """True if every node has an address on one common rail."""
    networks = [set(fleet.rail_networks(node.name)) for node in fleet.nodes]
    return len(networks) < 2 or bool(set.intersection(*networks))


def _fine(socket: ListeningSocket, node: NodeSnapshot, fleet: FleetReadings) -> bool:
    if socket.local or socket.port == fleet.gateway_port:
        return True
    if socket.anywhere:
        return False
    address = ip_address(socket.address)
    return any(address in ip_network(network) for network in fleet.rail_networks(node.name))


def _is_ours(socket: ListeningSocket, node: NodeSnapshot) -> bool:
    ours = {one.pid for one in node.processes or () if one.ours}
    return socket.pid in ours or ENGINES.match(socket.process) is not None


@node_check(
    "firewall", "no firewall blocks traffic between the nodes", rules=("ufw-blocks-fabric",),
    source="knowledge/rules/rules.yaml ufw-blocks-fabric",
)  # fmt: skip
def firewall(node: NodeSnapshot, kernel: Kernel, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports ufw, which DGX OS enables; only root may read its rules."""
    netdevs = fleet.rail_netdevs(node.name)
    if kernel.firewall and netdevs:
        yield note(
            f"{node.name}: ufw is on; its rules for the rails cannot be read without root",
            means="If ufw blocks the rails, NCCL and Ray hang while they connect.",
            do=tuple(f"sudo ufw allow in on {netdev}" for netdev in netdevs),
        )


CHECKS: tuple[Check, ...] = (exposed_ports, firewall)
