"""Files of a node's /sys/class/infiniband, which the node's first process updates from its netdevs."""

from __future__ import annotations

from pathlib import Path

from sparkfleet.lab.inside.netdevs import KERNELS, Hca, read_hcas
from sparkfleet.lab.inside.node_settings import HCAS, NETDEVS, NodeSettings

FIRMWARE = "28.45.4028"


def refresh(root: Path, settings: NodeSettings) -> None:
    """Writes the tree below `root` for the current state."""
    for hca in read_hcas(settings):
        device = root / hca.name
        _replace(device, "fw_ver", FIRMWARE)
        _replace(device, "board_id", "NVD0000000087")
        _replace(device, "hca_type", "MT4129")
        _replace(device, "node_guid", _colons(hca.guid))
        (device / "device/net" / hca.netdev.name).mkdir(parents=True, exist_ok=True)
        _replace(device, "ports/1/state", "4: ACTIVE" if hca.active else "1: DOWN")
        _replace(device, "ports/1/phys_state", "5: LinkUp" if hca.active else "3: Disabled")
        _replace(device, "ports/1/rate", _rate(hca, settings))
        _replace(device, "ports/1/link_layer", "Ethernet")
        _error_counters(device)
        _gids(device, hca)
    count(root)


def _rate(hca: Hca, settings: NodeSettings) -> str:
    if not hca.active:
        return "40 Gb/sec (4X QDR)"
    gbit = int(settings.number("speed", hca.netdev.name)) // 1000
    return f"{gbit} Gb/sec ({'4X HDR' if gbit == 200 else '2X HDR'})"


def refresh_links(root: Path, settings: NodeSettings) -> None:
    """Writes files of /sys/class/net that differ for a veth: speed (Mb/s), and the state, which is `down` on a NIC."""
    for hca in read_hcas(settings):
        netdev = hca.netdev
        speed = settings.text("speed", netdev.name) if netdev.carrier else "-1"
        _overwrite(root / netdev.name / "speed", speed)
        _overwrite(root / netdev.name / "operstate", "up" if netdev.carrier else "down")


def count(root: Path) -> None:
    """Writes the kernel's counters of every veth; data in words of four bytes, as InfiniBand counts."""
    for hca, netdev in zip(HCAS, NETDEVS, strict=True):
        kernels = Path(KERNELS, netdev, "statistics")
        for way, name in (("tx", "xmit"), ("rx", "rcv")):
            size, packets = (int((kernels / f"{way}_{what}").read_text()) for what in ("bytes", "packets"))
            _replace(root / hca, f"ports/1/counters/port_{name}_data", str(size // 4))
            _replace(root / hca, f"ports/1/counters/port_{name}_packets", str(packets))


def _error_counters(device: Path) -> None:
    for name in ("symbol_error", "link_downed", "port_rcv_errors"):
        _replace(device, f"ports/1/counters/{name}", "0")
    for name in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"):
        _replace(device, f"ports/1/hw_counters/{name}", "0")


def _gids(device: Path, hca: Hca) -> None:
    rows = {gid.index: gid for gid in hca.gids}
    for index in range(16):
        gid = rows.get(index)
        # An empty row reads as zeros, and its attributes cannot be read (EINVAL): here they are missing.
        _replace(device, f"ports/1/gids/{index}", gid.value if gid else "0000:" * 7 + "0000")
        for name, value in (("types", "RoCE v2" if gid and gid.version == 2 else "IB/RoCE v1"),
                            ("ndevs", hca.netdev.name)):  # fmt: skip
            place = f"ports/1/gid_attrs/{name}/{index}"
            if gid:
                _replace(device, place, value)
            else:
                (device / place).unlink(missing_ok=True)


def _colons(guid: str) -> str:
    return ":".join(guid[at : at + 4] for at in range(0, 16, 4))


def _replace(device: Path, place: str, text: str) -> None:
    """Replaces a file below a device's directory atomically: a reader gets the old text to its end."""
    path, content = device / place, text + "\n"
    if _read(path) != content:
        # Outside the device's directory: a list of a port's counters must not contain the new file.
        new = device / ".new"
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(content)
        new.rename(path)


def _overwrite(path: Path, text: str) -> None:
    """Overwrites a file in place: a bind mount keeps showing the file that it was made of, not a replacement."""
    content = text + "\n"
    if _read(path) != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
