"""The files that a node's /sys/class/infiniband consists of, kept true to its netdevs by the node's first process."""

from __future__ import annotations

from pathlib import Path

from sparkfleet.lab.inside.knobs import HCAS, NETDEVS, Settings
from sparkfleet.lab.inside.netdevs import KERNELS, Hca, read_hcas

FIRMWARE = "28.45.4028"


def refresh(root: Path, settings: Settings) -> None:
    """Write the tree below `root` as it should be now."""
    for hca in read_hcas(settings):
        port = root / hca.name / "ports/1"
        _write(root / hca.name / "fw_ver", FIRMWARE)
        _write(root / hca.name / "board_id", "NVD0000000087")
        _write(root / hca.name / "hca_type", "MT4129")
        _write(root / hca.name / "node_guid", _colons(hca.guid))
        (root / hca.name / "device/net" / hca.netdev.name).mkdir(parents=True, exist_ok=True)
        _write(port / "state", "4: ACTIVE" if hca.active else "1: DOWN")
        _write(port / "phys_state", "5: LinkUp" if hca.active else "3: Disabled")
        _write(port / "rate", _rate(hca, settings))
        _write(port / "link_layer", "Ethernet")
        _error_counters(port)
        _gids(port, hca)
    count(root)


def _rate(hca: Hca, settings: Settings) -> str:
    if not hca.active:
        return "40 Gb/sec (4X QDR)"
    gbit = int(settings.number("speed", hca.netdev.name)) // 1000
    return f"{gbit} Gb/sec ({'4X HDR' if gbit == 200 else '2X HDR'})"


def refresh_links(root: Path, settings: Settings) -> None:
    """Write what /sys/class/net tells wrong of a veth: its speed (Mb/s), and `lowerlayerdown` where a NIC is `down`."""
    for hca in read_hcas(settings):
        netdev = hca.netdev
        speed = settings.text("speed", netdev.name) if netdev.carrier else "-1"
        _write(root / netdev.name / "speed", speed)
        _write(root / netdev.name / "operstate", "up" if netdev.carrier else "down")


def count(root: Path) -> None:
    """The kernel's counts of every veth; data in the words of four bytes that InfiniBand counts in."""
    for hca, netdev in zip(HCAS, NETDEVS, strict=True):
        counters, kernels = root / hca / "ports/1/counters", Path(KERNELS, netdev, "statistics")
        for way, name in (("tx", "xmit"), ("rx", "rcv")):
            size, packets = (int((kernels / f"{way}_{what}").read_text()) for what in ("bytes", "packets"))
            _write(counters / f"port_{name}_data", str(size // 4))
            _write(counters / f"port_{name}_packets", str(packets))


def _error_counters(port: Path) -> None:
    for name in ("symbol_error", "link_downed", "port_rcv_errors"):
        _write(port / "counters" / name, "0")
    for name in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"):
        _write(port / "hw_counters" / name, "0")


def _gids(port: Path, hca: Hca) -> None:
    rows = {gid.index: gid for gid in hca.gids}
    for index in range(16):
        gid = rows.get(index)
        # An empty row reads as zeros, and its attributes cannot be read (EINVAL): here they are not there.
        _write(port / f"gids/{index}", gid.value if gid else "0000:" * 7 + "0000")
        for name, value in (("types", "RoCE v2" if gid and gid.version == 2 else "IB/RoCE v1"),
                            ("ndevs", hca.netdev.name)):  # fmt: skip
            path = port / "gid_attrs" / name / str(index)
            if gid:
                _write(path, value)
            else:
                path.unlink(missing_ok=True)


def _colons(guid: str) -> str:
    return ":".join(guid[at : at + 4] for at in range(0, 16, 4))


def _write(path: Path, text: str) -> None:
    content = text + "\n"
    try:
        if path.read_text() == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
