"""Measurements between nodes: bytes on the rails, bandwidth and latency. A negotiated speed proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, path_check
from sparkfleet.doctor.checks.link_ends import why_down
from sparkfleet.doctor.findings import CheckFault, error, not_known, warning
from sparkfleet.doctor.snapshot import EndSnapshot, FleetReadings, NodeSnapshot, PathSnapshot, RailSpeed

RDMA_TOOL = "ib_write_bw"
POWER_DRAIN = "If that does not help: shut both down, unplug power and QSFP cable for five minutes."


@path_check(
    "transport-proof",
    "traffic between the nodes takes the rails only",
    source="heitor-mocelin/dgx-spark-research: RDMA moves the counters of the HCA, not of the netdev",
)
def transport_proof(path: PathSnapshot) -> Iterator[CheckFault]:
    """Checks the counters of every device before and after the rails were loaded."""
    if path.proof is None:
        yield not_known(
            f"traffic between {' and '.join(path.nodes)}: its path was not measured{_because(path)}"
        )
    elif not path.proof.holds:
        yield error(
            f"{path.name}: {path.proof.said}",
            means="Traffic between ranks uses another network: about 1 GB/s instead of 22 on a LAN, 11 on"
            " one rail; anybody on the LAN can read it.",
            do=(
                f"ip route get {path.rails[0].there.ip}   # on {path.nodes[0]}: must show {path.rails[0].here.netdev}",
                "sparkfleet fabric apply",
            ),
            **{name: f"{count / 1e6:.1f} MB" for name, count in path.proof.moved.items()},
        )


@path_check(
    "rail-jumbo",
    "full-size packets pass",
    source="christopherowen/dgx-spark-networking: ping -M do -s 8972",
)
def rail_jumbo(path: PathSnapshot) -> Iterator[CheckFault]:
    """Checks the MTU of the path between the ends. No fault if small packets do not pass either."""
    for number, rail in enumerate(path.rails, start=1):
        if rail.jumbo is None:
            yield _not_pinged(f"rail {number} of {path.name}")
        elif rail.jumbo is False and rail.reached:
            yield error(
                f"rail {number} of {path.name}: packets of {thresholds.RAIL_MTU} bytes do not pass",
                means="A device on the path has a smaller MTU: large messages are dropped, and engines hang.",
                do=(
                    f"ping -M do -s 8972 -c 4 -I {rail.here.netdev} {rail.there.ip}   # on {rail.here.node}",
                    "sparkfleet fabric apply; on a switch, set the MTU of every port to 9216 or more",
                ),
            )


@path_check(
    "rail-reached",
    "both ends of a rail reach each other",
    rules=("cold-arp-retry-exc",),
    source="christopherowen/dgx-spark-networking",
)
def rail_reached(path: PathSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports rails without an answer that carried no measurement either: a node under load may answer late, and a firewall
    may drop pings only. One that is down is a finding of its own. The pings also resolve the MACs before the first RDMA
    connection.
    """
    for number, rail in enumerate(path.rails, start=1):
        if rail.reached or rail.jumbo or rail.gbit_per_s:
            continue
        if any(_is_down(fleet.node(end.node), end) for end in (rail.here, rail.there)):
            continue
        if rail.reached is None:
            yield _not_pinged(f"rail {number} of {path.name}")
        else:
            yield error(
                f"rail {number} of {path.name}: {rail.there.ip} does not answer {rail.here.node} on {rail.here.netdev}",
                means="This rail carries nothing. Causes: another subnet, or a firewall.",
                do=(
                    f"ip neigh show dev {rail.here.netdev}   # on {rail.here.node}",
                    f"sudo ufw allow in on {rail.there.netdev}   # on {rail.there.node}, if ufw is on",
                    "sparkfleet fabric apply",
                ),
            )


def _is_down(node: NodeSnapshot, end: EndSnapshot) -> bool:
    return node.netdevs is not None and why_down(node.netdev(end.netdev)) != ""


def _because(path: PathSnapshot) -> str:
    return f", because {path.not_loaded}" if path.not_loaded else ""


def _not_pinged(rail: str) -> CheckFault:
    return not_known(f"{rail}: not known, because `ping` did not run on it")


@path_check(
    "rail-bandwidth",
    "rails have the bandwidth of healthy ones",
    rules=("cx7-degraded-13gbps", "cx7-27w-benign"),
    source="NVIDIA/dgx-spark-playbooks: 92 to 112 Gb/s per rail healthy; 8 to 25 degraded (pull/108)",
)
def rail_bandwidth(path: PathSnapshot) -> Iterator[CheckFault]:
    """Checks bandwidth by RDMA if there is `ib_write_bw`; TCP can prove that a rail is bad, not that it is good."""
    if all(rail.gbit_per_s is None for rail in path.rails):
        yield not_known(f"bandwidth of {path.name}: not measured{_because(path)}")
        return
    for number, rail in enumerate(path.rails, start=1):
        if rail.gbit_per_s is None:
            yield not_known(f"rail {number} of {path.name}: bandwidth not measured")
        elif rail.is_rdma:
            yield from _too_slow(f"rail {number} of {path.name}", rail, rail.gbit_per_s)


def _too_slow(name: str, rail: RailSpeed, speed: float) -> Iterator[CheckFault]:
    by_rdma = rail.measured_with.startswith(RDMA_TOOL)
    degraded = thresholds.RAIL_DEGRADED_GBIT if by_rdma else thresholds.RAIL_TCP_DEGRADED_GBIT
    figures = f"{name} gives {speed:.1f} Gb/s, measured with {rail.measured_with}"
    if speed <= degraded and by_rdma:
        yield error(
            f"{figures}: the ConnectX-7 came up degraded",
            means="Link state and counters look normal. Healthy rails give 92 to 112 Gb/s;"
            " engines over this link are several times too slow.",
            do=("sudo apt full-upgrade && sudo reboot   # both nodes", POWER_DRAIN),
            threshold_gbit_per_s=degraded,
        )
    elif speed <= degraded:
        yield warning(
            f"{figures}: a degraded ConnectX-7, or busy CPUs",
            means="TCP cannot distinguish the two. RDMA over a healthy rail gives 92 to 112 Gb/s.",
            do=("sudo apt install perftest   # on both nodes: ib_write_bw", "sparkfleet doctor   # again"),
            threshold_gbit_per_s=degraded,
        )
    elif by_rdma and speed < thresholds.RAIL_HEALTHY_GBIT:
        yield warning(
            f"{figures}; healthy rails give 92 to 112",
            means="Other traffic uses it, its PCIe link is too narrow, or its cable is bad.",
            do=(
                "sparkfleet doctor   # again, without load",
                f"ethtool -S {rail.here.netdev} | grep -E 'err|discard|corrected'   # on {rail.here.node}",
            ),
            threshold_gbit_per_s=thresholds.RAIL_HEALTHY_GBIT,
        )


@path_check("rails-balanced", "both rails are equally fast", source="chosen here: within a few per cent")
def rails_balanced(path: PathSnapshot) -> Iterator[CheckFault]:
    """Compares the rails of one cable by RDMA: TCP streams share processors unevenly."""
    speeds = [rail.gbit_per_s for rail in path.rails if rail.gbit_per_s and rail.measured_with == RDMA_TOOL]
    if len(speeds) > 1 and min(speeds) < max(speeds) * (1 - thresholds.RAILS_IMBALANCE):
        figures = " and ".join(f"{speed:.1f}" for speed in speeds)
        yield warning(
            f"{path.name}: its rails give {figures} Gb/s",
            means="Collectives run at the speed of the slower rail.",
            do="sparkfleet doctor   # again, without load; then check the PCIe link and the cable",
        )


@path_check(
    "rail-latency",
    "small messages have a low latency",
    source="DoctorMasterNewb/sparkbase: ping 0.4 to 1.4 ms, ib_write_lat 1.5 us",
)
def rail_latency(path: PathSnapshot) -> Iterator[CheckFault]:
    """Checks latency by `ib_write_lat`, and round trips by ping."""
    for number, rail in enumerate(path.rails, start=1):
        one_way, ping = rail.one_way_us, rail.ping_us
        slow = (
            rail.measured_with == RDMA_TOOL and one_way is not None and one_way > thresholds.RDMA_LATENCY_US
        )
        if one_way is None and ping is None and rail.jumbo is None:
            yield _not_pinged(f"rail {number} of {path.name}")
        if not slow and (ping is None or ping <= thresholds.RAIL_PING_US):
            continue
        took = f"{one_way:.1f} us one way by RDMA" if slow else f"{(ping or 0) / 1000:.1f} ms there and back"
        yield warning(
            f"rail {number} of {path.name}: a small message takes {took}",
            means="An engine on two nodes sends about 100 small messages per token, one after the other.",
            do=f"ping -c 100 -i 0.01 -I {rail.here.netdev} {rail.there.ip}   # on {rail.here.node}",
        )


CHECKS: tuple[Check, ...] = (
    rail_reached,
    transport_proof,
    rail_jumbo,
    rail_bandwidth,
    rails_balanced,
    rail_latency,
)
