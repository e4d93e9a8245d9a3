"""Environment variables that pin a group's traffic to the rails of its own link. Pure.

NCCL carries the collectives, Gloo and PyTorch's TensorPipe the rendezvous, UCX MPI's messages. Without these variables each
takes the default route, which on a Spark is Wi-Fi or the 10 GbE port (issues mgmt-ip-wall, one-half-only).
All are per rank: netdevs may be named differently on each node.
"""

from __future__ import annotations

from sparkfleet.engines.base import RankContext

Pairs = tuple[tuple[str, str], ...]


def fabric_env(context: RankContext, device: str) -> Pairs:
    """Environment that pins rank `context.rank` to its rails; () for a group of one rank.

    NCCL_IB_GID_INDEX is left out on purpose: NCCL from 2.21 on picks the index per device, and one forced value hangs if
    the two halves of a cable differ (known issue gid-index-mismatch). The family and the RoCE version are enough.
    """
    if not context.netdev:
        return ()
    sockets = (
        ("GLOO_SOCKET_IFNAME", context.netdev),
        ("TP_SOCKET_IFNAME", context.netdev),
    )
    return (*sockets, *(_nccl(context) if device == "cuda" else ()))


def _nccl(context: RankContext) -> Pairs:
    netdevs = ("NCCL_SOCKET_IFNAME", context.netdev), ("UCX_NET_DEVICES", ",".join(_ucx(context)))
    mpi = (("OMPI_MCA_btl_tcp_if_include", context.netdev),)
    devices = [rail.rdma for rail in context.rails if rail.rdma]
    if not devices or len(devices) < len(context.rails):
        # Sockets, explicitly: NCCL would otherwise try RoCE devices that belong to no rail.
        return (*netdevs, *mpi, ("NCCL_IB_DISABLE", "1"))
    return (
        *netdevs,
        *mpi,
        ("NCCL_IB_HCA", "=" + ",".join(devices)),  # "=": exactly these, no prefixes
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_NET", "IB"),  # no silent fall-back to sockets, which would serve at a fraction of the speed
        ("NCCL_IB_ROCE_VERSION_NUM", "2"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6" if ":" in context.rails[0].address else "AF_INET"),
        # The halves of one cable are one link (22 to 24 GB/s; one alone 13); the cables of a ring are not.
        ("NCCL_IB_MERGE_NICS", "0" if context.control_netdev else "1"),
        *((("NCCL_IB_SUBNET_AWARE_ROUTING", "1"),) if len(devices) > 1 else ()),
    )


def _ucx(context: RankContext) -> list[str]:
    return [rail.netdev for rail in context.rails] or [context.netdev]


def merged(*groups: Pairs) -> Pairs:
    """All variables, each name once, in the order of first appearance; later values win."""
    found: dict[str, str] = {}
    for group in groups:
        found |= dict(group)
    return tuple(found.items())
