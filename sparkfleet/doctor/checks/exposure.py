"""What can be reached from outside: of ours and of the engines, nothing but the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import Fault, error, note, warning
from sparkfleet.doctor.gathered import FleetView, NodeView
from sparkfleet.facts.memory import Kernel
from sparkfleet.facts.sockets import ListeningSocket

ENGINES = re.compile(
    r"(vllm|sglang|trtllm|tritonserver|llama-server|ray::|gcs_server|raylet|raylet_agent|dashboard|ray)",
    re.IGNORECASE,
)
RAY_PORTS = {6379: "Ray's GCS", 8265: "Ray's dashboard", 10001: "Ray's client server", 52365: "Ray's agent"}
"""Ray's own defaults: whoever reaches them runs code as this user."""


@node_check(
    "exposed-ports", "nothing but the gateway can be reached from the network", source="the fleet's rule"
)
def exposed_ports(node: NodeView, sockets: tuple[ListeningSocket, ...], fleet: FleetView) -> Iterator[Fault]:
    """Sockets on any address or on the management network; loopback and rails are fine."""
    told: set[int] = set()
    for socket in sockets:
        if socket.port in told or _fine(socket, node, fleet):
            continue
        told.add(socket.port)
        where = "on every address" if socket.anywhere else f"on {socket.address}"
        if _is_ours(socket, node):
            yield error(
                f"{node.name}: {socket.process or 'a process of ours'} listens {where}, port {socket.port}",
                means="Anybody on the management network reaches it, without an API key.",
                do=(
                    f"ss -ltnp 'sport = :{socket.port}'",
                    "sparkfleet down && sparkfleet up   # binds to loopback and the rails",
                ),
            )
        elif socket.port in RAY_PORTS:
            yield warning(
                f"{node.name}: port {socket.port} ({RAY_PORTS[socket.port]}) is open {where}",
                means="If it is Ray, anybody on the network runs code as its user. Whose it is could not be told.",
                do=f"sudo ss -ltnp 'sport = :{socket.port}'",
            )


def _fine(socket: ListeningSocket, node: NodeView, fleet: FleetView) -> bool:
    if socket.local or (node.name == fleet.head and socket.port == fleet.gateway_port):
        return True
    if socket.anywhere:
        return False
    address = ip_address(socket.address)
    return any(address in ip_network(network) for network in fleet.rail_networks(node.name))


def _is_ours(socket: ListeningSocket, node: NodeView) -> bool:
    ours = {one.pid for one in node.processes or () if one.ours}
    return socket.pid in ours or ENGINES.match(socket.process) is not None


@node_check(
    "firewall", "no firewall stands between the nodes", rules=("ufw-blocks-fabric",),
    source="knowledge/rules.yaml ufw-blocks-fabric",
)  # fmt: skip
def firewall(node: NodeView, kernel: Kernel, fleet: FleetView) -> Iterator[Fault]:
    """DGX OS switches ufw on. What it lets through only root may read."""
    netdevs = [
        end.netdev
        for link in fleet.links
        for rail in link.rails
        for end in rail.ends
        if end.node == node.name
    ]
    if kernel.firewall and netdevs:
        yield note(
            f"{node.name}: ufw is on; whether it lets the rails through cannot be read without root",
            means="If it does not, NCCL and Ray hang while they connect.",
            do=tuple(f"sudo ufw allow in on {netdev}" for netdev in netdevs),
        )


CHECKS: tuple[Check, ...] = (exposed_ports, firewall)
