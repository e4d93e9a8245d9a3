"""ibdev2netdev, rdma, ibv_devices, ibv_devinfo, ibstat and show_gids of a ConnectX-7, by the state of the node's netdevs."""

from __future__ import annotations

import json
import sys

from sparkfleet.lab.inside.netdevs import Hca, SimulatedGid, read_hcas
from sparkfleet.lab.inside.node_settings import NodeSettings
from sparkfleet.lab.inside.sysfs import FIRMWARE

_MTU_CODES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


def ibdev2netdev(argv: list[str], settings: NodeSettings) -> int:
    """RoCE devices and their netdevs."""
    for hca in read_hcas(settings):
        print(f"{hca.name} port 1 ==> {hca.netdev.name} ({'Up' if hca.active else 'Down'})")
    return 0


def rdma(argv: list[str], settings: NodeSettings) -> int:
    """`rdma link [show]`, as text or with -j."""
    words = [word for word in argv[1:] if not word.startswith("-")]
    if words[:1] != ["link"]:
        print(f"The lab's rdma has no capture of: {' '.join(argv[1:])}", file=sys.stderr)
        return 1
    hcas = read_hcas(settings)
    if any(option in argv for option in ("-j", "-jp", "--json")):
        print(json.dumps([_link_json(index, hca) for index, hca in enumerate(hcas)]))
        return 0
    for hca in hcas:
        state, physical = _states(hca)
        print(f"link {hca.name}/1 state {state} physical_state {physical} netdev {hca.netdev.name} ")
    return 0


def _states(hca: Hca) -> tuple[str, str]:
    return ("ACTIVE", "LINK_UP") if hca.active else ("DOWN", "DISABLED")


def _link_json(index: int, hca: Hca) -> dict[str, object]:
    state, physical = _states(hca)
    return {"ifindex": index, "ifname": hca.name, "port": 1, "state": state, "physical_state": physical,
            "netdev": hca.netdev.name}  # fmt: skip


def ibv_devices(argv: list[str], settings: NodeSettings) -> int:
    """Devices and their node GUIDs."""
    print("    device          \t   node GUID\n    ------          \t----------------")
    for hca in read_hcas(settings):
        print(f"    {hca.name:<16}\t{hca.guid}")
    return 0


def ibv_devinfo(argv: list[str], settings: NodeSettings) -> int:
    """All devices, or the one after -d."""
    wanted = argv[argv.index("-d") + 1] if "-d" in argv[:-1] else None
    chosen = [hca for hca in read_hcas(settings) if wanted in (None, hca.name)]
    if not chosen:
        print(f"IB device '{wanted}' wasn't found", file=sys.stderr)
        return 255
    for hca in chosen:
        print(_devinfo(hca, chosen[0].guid))
    return 0


def _devinfo(hca: Hca, image: str) -> str:
    mtu = hca.active_mtu
    guid, system = (":".join(text[at : at + 4] for at in range(0, 16, 4)) for text in (hca.guid, image))
    state = "PORT_ACTIVE (4)" if hca.active else "PORT_DOWN (1)"
    return (
        f"hca_id:\t{hca.name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{FIRMWARE}\n"
        f"\tnode_guid:\t\t\t{guid}\n\tsys_image_guid:\t\t\t{system}\n\tvendor_id:\t\t\t0x02c9\n"
        f"\tvendor_part_id:\t\t\t4129\n\thw_ver:\t\t\t\t0x0\n\tboard_id:\t\t\tNVD0000000087\n\tphys_port_cnt:\t\t\t1\n"
        f"\t\tport:\t1\n\t\t\tstate:\t\t\t{state}\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tactive_mtu:\t\t{mtu} ({_MTU_CODES[mtu]})\n\t\t\tsm_lid:\t\t\t0\n\t\t\tport_lid:\t\t0\n"
        f"\t\t\tport_lmc:\t\t0x00\n\t\t\tlink_layer:\t\tEthernet\n"
    )


def ibstat(argv: list[str], settings: NodeSettings) -> int:
    """All devices, or the named one."""
    names = [word for word in argv[1:] if not word.startswith("-")]
    for hca in read_hcas(settings):
        if not names or hca.name in names:
            print(_ibstat(hca, int(settings.number("speed", hca.netdev.name)) // 1000))
    return 0


def _ibstat(hca: Hca, gbit: int) -> str:
    state, physical, rate = ("Active", "LinkUp", gbit) if hca.active else ("Down", "Disabled", 40)
    return (
        f"CA '{hca.name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: {FIRMWARE}\n"
        f"\tHardware version: 0\n\tNode GUID: 0x{hca.guid}\n\tSystem image GUID: 0x{hca.guid}\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: 0\n\t\tLMC: 0\n"
        f"\t\tSM lid: 0\n\t\tCapability mask: 0x00010000\n\t\tPort GUID: 0x{hca.guid}\n\t\tLink layer: Ethernet"
    )


def show_gids(argv: list[str], settings: NodeSettings) -> int:
    """The GID tables, and the number of their rows."""
    print(
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---"
    )
    rows = [
        (hca, gid) for hca in read_hcas(settings) for gid in hca.gids if len(argv) < 2 or hca.name == argv[1]
    ]
    for hca, gid in rows:
        print(_gid_row(hca, gid))
    print(f"n_gids_found={len(rows)}")
    return 0


def _gid_row(hca: Hca, gid: SimulatedGid) -> str:
    return f"{hca.name}\t1\t{gid.index}\t{gid.value}\t{gid.ipv4:<14}\tv{gid.version}\t{hca.netdev.name}"
