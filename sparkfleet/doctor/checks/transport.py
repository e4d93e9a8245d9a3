"""What was measured on cables: that bytes take the rails, how many, and how soon. A negotiated speed proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, link_check
from sparkfleet.doctor.findings import Fault, error, not_known, warning
from sparkfleet.doctor.gathered import FleetView, LinkView, RailView

RDMA_TOOL = "ib_write_bw"

POWER_DRAIN = "Where that does not help: shut both down, unplug power and QSFP cable for five minutes."


@link_check(
    "transport-proof",
    "bytes between the nodes take the rails, and only those",
    source="spark-ops 6.1: transport proof",
)
def transport_proof(link: LinkView, fleet: FleetView) -> Iterator[Fault]:
    """Counters of both rails, and of the management network, while a known number of bytes was sent."""
    if not fleet.measured or link.switch is not None:
        return
    if link.proof is None:
        yield not_known(f"whether bytes between {' and '.join(link.nodes)} take the rails was not measured")
        return
    proof = link.proof
    for number, moved in enumerate(proof.rails_bytes, start=1):
        if moved < proof.sent_bytes / len(proof.rails_bytes) / 2:
            yield error(
                f"{link.name}: rail {number} carried {moved / 1e6:.1f} MB of {proof.sent_bytes / 1e6:.1f} MB that were sent",
                means="What should go over this rail goes elsewhere: half the bandwidth, or the wrong network.",
                do=(
                    f"ip route get {link.rails[number - 1].ends[-1].ip}   # on {link.nodes[0]}",
                    "sparkfleet fabric apply",
                ),
            )
    if proof.lan_bytes > proof.sent_bytes * thresholds.LAN_SHARE:
        yield error(
            f"{link.name}: {proof.lan_bytes / 1e6:.1f} of {proof.sent_bytes / 1e6:.1f} MB went over the management network",
            means="The traffic of engines would, too: about 1 GB/s instead of 22, and everybody on the LAN could read it.",
            do=(
                "sparkfleet fabric apply",
                f"ip route get {link.rails[0].ends[-1].ip}   # on {link.nodes[0]}",
            ),
        )


@link_check(
    "rail-bandwidth",
    "rails are as fast as those of others",
    rules=("cx7-degraded-13gbps", "cx7-27w-benign"),
    source="spark-ops 2.3: 92 to 112 Gb/s per rail healthy; 8 to 25 degraded (dgx-spark-playbooks PR 108)",
)
def rail_bandwidth(link: LinkView, fleet: FleetView) -> Iterator[Fault]:
    """By RDMA where there is `ib_write_bw`; TCP can prove that a rail is bad, and not that it is good."""
    if not fleet.measured:
        return
    for number, rail in enumerate(link.rails, start=1):
        if rail.gbit_per_s is None:
            if link.switch is None:
                yield not_known(f"rail {number} of {link.name}: its bandwidth was not measured")
        elif rail.is_rdma:
            yield from _too_slow(number, rail, rail.gbit_per_s, link)


def _too_slow(number: int, rail: RailView, speed: float, link: LinkView) -> Iterator[Fault]:
    by_rdma = rail.measured_with.startswith(RDMA_TOOL)
    degraded = thresholds.RAIL_DEGRADED_GBIT if by_rdma else thresholds.RAIL_TCP_DEGRADED_GBIT
    said = f"rail {number} of {link.name} gives {speed:.1f} Gb/s, measured with {rail.measured_with}"
    if speed <= degraded:
        yield error(
            f"{said}: the ConnectX-7 came up degraded",
            means="Link and counters look clean all the same. Healthy rails give 92 to 112 Gb/s;"
            " engines over this link would be several times too slow.",
            do=(
                "sudo apt full-upgrade && sudo reboot   # both nodes",
                POWER_DRAIN,
            ),
            threshold_gbit_per_s=degraded,
        )
    elif by_rdma and speed < thresholds.RAIL_HEALTHY_GBIT:
        yield warning(
            f"{said}; healthy rails give 92 to 112",
            means="Something shares it, its PCIe link is narrow, or its cable is bad.",
            do=(
                "sparkfleet doctor   # again, with nothing running",
                "ethtool -S NETDEV | grep -E 'err|discard|corrected'",
            ),
            threshold_gbit_per_s=thresholds.RAIL_HEALTHY_GBIT,
        )


@link_check("rails-balanced", "both rails are equally fast", source="spark-ops 6.1: within a few per cent")
def rails_balanced(link: LinkView, fleet: FleetView) -> Iterator[Fault]:
    """Of one cable."""
    speeds = [rail.gbit_per_s for rail in link.rails if rail.gbit_per_s]
    if fleet.measured and len(speeds) > 1 and min(speeds) < max(speeds) * (1 - thresholds.RAILS_IMBALANCE):
        said = " and ".join(f"{speed:.1f}" for speed in speeds)
        yield warning(
            f"{link.name}: its rails give {said} Gb/s",
            means="Collectives wait for the slower one.",
            do="sparkfleet doctor   # again, with nothing running; then look at the PCIe link and the cable",
        )


@link_check(
    "rail-latency", "small messages are quick", source="spark-ops 2.3: ping over a rail 0.4 to 1.4 ms"
)
def rail_latency(link: LinkView, fleet: FleetView) -> Iterator[Fault]:
    """There and back."""
    for number, rail in enumerate(link.rails, start=1):
        if fleet.measured and rail.latency_us is not None and rail.latency_us > thresholds.RAIL_LATENCY_US:
            yield warning(
                f"rail {number} of {link.name}: a small message takes {rail.latency_us / 1000:.1f} ms there and back",
                means="Every token over two nodes waits for a hundred of them.",
                do=f"ping -c 100 -i 0.01 -I {rail.ends[0].netdev} {rail.ends[-1].ip}   # on {rail.ends[0].node}",
            )


@link_check(
    "nccl-bandwidth", "collectives use the rails' speed", rules=("nccl-topo-gen1x1",),
    source="NVIDIA dgx-spark-playbooks, nccl page: passes from 21.875 GB/s on",
)  # fmt: skip
def nccl_bandwidth(link: LinkView, fleet: FleetView) -> Iterator[Fault]:
    """nccl-tests, where they are installed."""
    speed = link.all_gather_gb_per_s
    if speed is not None and speed < 4:
        yield error(
            f"{link.name}: all_gather reaches {speed:.1f} GB/s of 22",
            means="With healthy rails: NCCL takes the GPU for a PCIe Gen1 x1 device, uses a wrong plugin, or the LAN.",
            do=(
                "NCCL_DEBUG=INFO: every channel has to say `via NET/IB`.",
                "NCCL_NET_PLUGIN=none",
                "NCCL 2.30.4 or later",
            ),
        )


CHECKS: tuple[Check, ...] = (transport_proof, rail_bandwidth, rails_balanced, rail_latency, nccl_bandwidth)
