"""ethtool and ip of a Spark: the veths' real state, shown as physical netdevs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from sparkfleet.lab.inside.commands import pass_on
from sparkfleet.lab.inside.netdevs import IP, SimulatedNetdev, read_netdevs
from sparkfleet.lab.inside.node_settings import NETDEVS, NodeSettings
from sparkfleet.lab.inside.sysfs import FIRMWARE

_MANAGEMENT = "enP7s7"
_SUFFIX = re.compile(r"(?<=\S)@(if[0-9]+|[A-Za-z0-9]+)(?=[\s:])")
_NAMESPACE = re.compile(r" link-netns(id)? \S+")


def ip(argv: list[str], settings: NodeSettings) -> int:
    """The system's ip; in lists of links a veth is shown as the physical netdev that it simulates."""
    words = [word for word in argv[1:] if not word.startswith("-")]
    showing = bool(words) and ("link".startswith(words[0]) or "address".startswith(words[0]))
    if not showing or any(
        word in words for word in ("add", "del", "delete", "set", "replace", "flush", "change")
    ):
        return pass_on("ip", argv[1:])
    done = subprocess.run((IP, *argv[1:]), stdout=subprocess.PIPE, text=True, check=False)
    if done.stdout.startswith(("[", "{")):
        print(json.dumps([_physical(row) for row in json.loads(done.stdout)]))
    else:
        print(_NAMESPACE.sub("", _SUFFIX.sub("", done.stdout)).replace("LOWERLAYERDOWN", "DOWN"), end="")
    return done.returncode


def _physical(row: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in row.items()
        if key not in ("link", "link_index", "link_netnsid", "linkinfo")
    }
    if kept.get("operstate") == "LOWERLAYERDOWN":
        kept["operstate"] = "DOWN"
    return kept


def ethtool(argv: list[str], settings: NodeSettings) -> int:
    """The link, its driver (-i), counters (-S), FEC (--show-fec) or module (-m); anything else is the system's."""
    option = argv[1] if len(argv) > 2 and argv[1].startswith("-") else ""
    name = argv[2] if option and len(argv) > 2 else argv[1] if len(argv) > 1 else ""
    netdev = read_netdevs().get(name)
    if name not in (*NETDEVS, _MANAGEMENT) or netdev is None:
        return pass_on("ethtool", argv[1:])
    shown = {"": _link, "-i": _driver, "--driver": _driver, "-S": _counters, "--statistics": _counters,
             "--show-fec": _fec, "-m": _module, "--module-info": _module}.get(option)  # fmt: skip
    if shown is None:
        return pass_on("ethtool", argv[1:])
    print(shown(netdev, settings))
    if not option:
        print("netlink error: Operation not permitted", file=sys.stderr)
    return 0


def _link(netdev: SimulatedNetdev, settings: NodeSettings) -> str:
    fabric = netdev.name in NETDEVS
    speed = (
        f"{settings.text('speed', netdev.name) if fabric else 10000}Mb/s" if netdev.carrier else "Unknown!"
    )
    lines = [
        f"Settings for {netdev.name}:",
        "\tSupported ports: [ FIBRE ]" if fabric else "\tSupported ports: [ TP ]",
    ]
    lines += [f"\tSpeed: {speed}"]
    lines += ["\tLanes: 4"] if fabric and netdev.carrier else []
    lines += [f"\tDuplex: {'Full' if netdev.carrier else 'Unknown! (255)'}", "\tAuto-negotiation: on"]
    lines += [f"\tPort: {'Direct Attach Copper' if fabric else 'Twisted Pair'}", "\tPHYAD: 0"]
    detected = "yes" if netdev.carrier else "no (No cable)" if fabric else "no"
    return "\n".join([*lines, f"\tLink detected: {detected}"])


def _driver(netdev: SimulatedNetdev, settings: NodeSettings) -> str:
    if netdev.name == _MANAGEMENT:
        return "driver: r8127\nversion: 11.015.00-NAPI\nfirmware-version: \nbus-info: 0007:01:00.0"
    domain, port = ("0002" if "P2p" in netdev.name else "0000"), netdev.name[-1]
    head = "driver: mlx5_core\nversion: 6.17.0-1014-nvidia"
    return f"{head}\nfirmware-version: {FIRMWARE} (NVD0000000087)\nbus-info: {domain}:01:00.{port}"


def _counters(netdev: SimulatedNetdev, settings: NodeSettings) -> str:
    found = netdev.counters
    rows = {name: found[name] for name in ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")}
    rows |= {f"{name}_phy": value for name, value in rows.items()}
    rows |= dict.fromkeys(("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_discards_phy", "tx_discards_phy"), 0)
    rows |= {"rx_err_lane_0_phy": 6, "rx_err_lane_1_phy": 2, "rx_err_lane_2_phy": 190, "rx_err_lane_3_phy": 0,
             "rx_corrected_bits_phy": 198, "link_down_events_phy": 0}  # fmt: skip
    return "\n".join(["NIC statistics:", *(f"     {name}: {value}" for name, value in rows.items())])


def _fec(netdev: SimulatedNetdev, settings: NodeSettings) -> str:
    active = "RS" if netdev.carrier else "None"
    return f"FEC parameters for {netdev.name}:\nSupported/Configured FEC encodings: Auto\nActive FEC encoding: {active}"


def _module(netdev: SimulatedNetdev, settings: NodeSettings) -> str:
    return ("\tIdentifier                                : 0x11 (QSFP28)\n"
            "\tTransceiver type                          : 200GBASE-CR4\n"
            "\tEncoding                                  : 0x08 (PAM4)")  # fmt: skip
