"""RDMA on the rails of a cable: its devices, their GIDs, their MTU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import link_check
from sparkfleet.doctor.checks.agreement import differing
from sparkfleet.doctor.checks.link_ends import FABRIC, netdevs_of, not_read
from sparkfleet.doctor.findings import CheckFault, error, note, warning
from sparkfleet.doctor.snapshot import FleetReadings, LinkSnapshot


@link_check(
    "rail-rdma",
    "RDMA is active on the rails",
    needs=("netdevs",),
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks: ibdev2netdev",
)
def rail_rdma(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Checks that the RoCE device exists, belongs to this netdev, and has an active port."""
    for rail, end, node, netdev in netdevs_of(link, fleet):
        if end.rdma is None or not netdev.carrier:
            continue
        if node.rdma_links is None:
            yield not_read("RDMA", end, node, "rdma_links")
            continue
        found = next((one for one in node.rdma_links if one.device == end.rdma), None)
        if found is not None and found.active and found.netdev in ("", end.netdev):
            continue
        state = (
            "does not exist"
            if found is None
            else f"is {found.state}"
            if not found.active
            else f"belongs to {found.netdev}"
        )
        yield error(
            f"{rail}: RoCE device {end.rdma} on {end.node} {state}",
            means="NCCL falls back to TCP (NET/Socket): a tenth of the bandwidth, ten times the latency.",
            do=(
                "rdma link   # or ibdev2netdev",
                "sudo modprobe mlx5_ib",
                f"sparkfleet init {' '.join(link.nodes)}   # finds the devices",
            ),
        )


@link_check(
    "rail-gid", "RoCE has an IPv4 entry for every rail", needs=("netdevs",), rules=("gid-index-mismatch",),
    source="show_gids; knowledge/rules/rules.yaml gid-index-mismatch",
)  # fmt: skip
def rail_gid(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Checks the v2 GID of the rail's own address, and that its index is equal everywhere."""
    indexes: dict[str, list[str]] = defaultdict(list)
    for rail, end, node, _ in netdevs_of(link, fleet):
        if end.rdma is None or (node.rdma_links is not None and not node.rdma_links):
            continue
        if node.gids is None:
            yield not_read("GIDs", end, node, "gids")
            continue
        found = next((gid for gid in node.gids_of(end.rdma) if gid.ipv4 == end.ip), None)
        if found is None:
            yield error(
                f"{rail}: {end.rdma} on {end.node} has no RoCE v2 GID for {end.ip}",
                means="NCCL cannot use this rail; with a wrong GID it fails with IBV_WC_RETRY_EXC_ERR.",
                do=(
                    f"show_gids {end.rdma}",
                    FABRIC,
                    f"sudo ip link set {end.netdev} down && sudo ip link set {end.netdev} up   # rebuilds the GID table",
                ),
            )
        else:
            indexes[f"index {found.index}"].append(f"{end.node}:{end.rdma}")
    if differences := differing(indexes):
        yield note(
            f"{link.name}: the GID index differs: {differences}",
            means="A fixed NCCL_IB_GID_INDEX would be wrong on one node; sparkfleet lets NCCL choose it.",
            do="Leave NCCL_IB_GID_INDEX unset; set NCCL_IB_ROCE_VERSION_NUM=2 and NCCL_IB_ADDR_FAMILY=AF_INET.",
        )


@link_check(
    "rail-rdma-mtu",
    "RoCE sends packets of 4096 bytes",
    needs=("netdevs",),
    source="ibv_devinfo: active_mtu; MTU 9000 by christopherowen/dgx-spark-networking",
)
def rail_rdma_mtu(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Checks the RDMA MTU, which follows the netdev's only when its port comes up again."""
    for rail, end, node, netdev in netdevs_of(link, fleet):
        device = node.rdma_device(end.rdma) if end.rdma else None
        if end.rdma and node.rdma_devices is None:
            yield not_read("RDMA MTU", end, node, "rdma_devices")
        jumbo = netdev.mtu >= thresholds.RAIL_MTU
        if device is not None and device.active and jumbo and device.active_mtu < thresholds.RDMA_MTU:
            yield warning(
                f"{rail}: {end.rdma} on {end.node}"
                f" sends packets of {device.active_mtu} bytes, not {thresholds.RDMA_MTU}",
                means="The MTU was raised after RDMA came up: small packets cost bandwidth.",
                do=f"sudo ip link set {end.netdev} down && sudo ip link set {end.netdev} up   # on {end.node}",
            )
