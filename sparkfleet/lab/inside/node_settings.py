"""Settings of a simulated node (`set NODE KEY=VALUE`): their accepted values, and those of a healthy DGX Spark.

Healthy values are those of captures from real machines (docs/lab.md names the sources).
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATE = Path("/run/lab/state/knobs.json")
ASKED = STATE.with_name("asked")
"""A token of the lab, which asks a node's first process to update /sys."""
ANSWERED = STATE.with_name("answered")
"""The same token, as soon as /sys shows the state of that moment."""
REFRESH = signal.SIGUSR1
"""Wakes a node's first process, to read ASKED."""
TOOLS = "/run/lab/bin"
"""The device commands."""
REAL = "/run/lab/real"
"""The host's /usr/bin, below the layer of device commands."""
_NUMBER = r"-?[0-9]{1,9}(\.[0-9]{1,6})?"
_POSITIVE = r"(?!0+(\.0+)?$)[0-9]{1,9}(\.[0-9]{1,6})?"
_WORD = r"[A-Za-z0-9._-]{1,64}"
NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
HCAS = ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1")
"""In the order of NETDEVS."""


@dataclass(frozen=True)
class Knob:
    """A setting: its healthy value, its accepted values, and its effect. `per`: devices that it can be set for alone."""

    healthy: str
    accepts: str
    help: str
    per: tuple[str, ...] = ()


KNOBS: dict[str, Knob] = {
    "driver": Knob("580.159.03", r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", "driver version of nvidia-smi"),
    "cuda": Knob("13.0", r"[0-9]{1,2}\.[0-9]{1,2}", "CUDA version of nvidia-smi"),
    "gpu": Knob("present", "present|missing|no-driver", "no device found, or no driver at all"),
    "clock": Knob(
        "idle",
        "idle|busy|wedged|throttled",
        "SM clock and power: 208 MHz 4 W, 2418 MHz 38 W, 650 MHz 14 W busy, 1210 MHz with a slowdown by heat",
    ),
    "temperature": Knob("41", r"[0-9]{1,3}", "GPU temperature, °C"),
    "holder_mib": Knob("0", r"[0-9]{1,6}", "a leftover process holds this much GPU memory, MiB"),
    "xid": Knob("0", r"[0-9]{1,3}", "an Xid error in dmesg, and in the kernel's journal"),
    "boot_before": Knob(
        "shutdown", "shutdown|cut|pcie|none", "end of the boot before: power cut, fatal PCIe error"
    ),
    "machine": Knob(
        "spark", "spark|gx10|pgx|jetson-thor|gh200|rtx-spark", "kind of machine: DMI, GPU, release"
    ),
    "dgx_os": Knob("7.5.0", r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", "DGX OS version of the last update"),
    "machine_id": Knob(
        "own", rf"own|[0-9a-f]{{32}}|{_WORD}", "own, 32 hex digits, or a node whose id it has"
    ),
    "host_key": Knob("own", rf"own|new|{_WORD}", "own, new (changed since), or a node whose key it has"),
    "pcie_width": Knob("4", "1|2|4|8|16", "PCIe lanes of a ConnectX function", HCAS),
    "rdma_gbit": Knob("98.04", _POSITIVE, "bandwidth by ib_write_bw on one rail, Gb/s", HCAS),
    "rdma_us": Knob("1.5", _POSITIVE, "latency by ib_write_lat, µs", HCAS),
    "slow_gbit": Knob("0", _NUMBER, "set by `slow`: the rail's real rate, Gb/s", NETDEVS),
    "slow_ms": Knob("0", _NUMBER, "set by `slow`: added delay, ms", NETDEVS),
    "speed": Knob("200000", r"[0-9]{1,6}", "link speed by ethtool, Mb/s", NETDEVS),
    "gid": Knob("ok", "ok|missing|shifted", "RoCE v2 IPv4 GID: at index 3, absent, or at index 5", HCAS),
    "clock_skew": Knob("0", _NUMBER, "seconds that the node's clock is ahead"),
    "ntp": Knob("yes", "yes|no", "clock synchronised, by timedatectl"),
    "memlock": Knob("unlimited", r"unlimited|[0-9]{1,9}", "locked memory a user may have, KiB"),
    "groups": Knob(
        "docker", r"|[a-z][a-z0-9-]{0,30}(,[a-z][a-z0-9-]{0,30}){0,9}", "groups of the user, by comma"
    ),
    "container": Knob("podman", "podman|none", "container tool on the node"),
    "disk": Knob(
        "real", r"real|[0-9]{1,6}(\.[0-9]{1,3})?[MGT]", "size of a file system of its own for the model cache"
    ),
    "meminfo": Knob(
        "real",
        "real|spark|spark-64|leaked",
        "/proc/meminfo: the host's, a Spark's, that of one with 64 GB, or with 80 GiB unaccounted",
    ),
    "sudo": Knob("no", "no|yes", "the user may use sudo without a password"),
}


def split(key: str) -> tuple[str, str]:
    """`gid.rocep1s0f1` as its knob and its device ("" for all)."""
    name, _, device = key.partition(".")
    return name, device


def problem(key: str, value: str) -> str | None:
    """Error in a setting, or None."""
    name, device = split(key)
    knob = KNOBS.get(name)
    if knob is None:
        return f"there is no {name!r}; known: {', '.join(sorted(KNOBS))}"
    if device and device not in knob.per:
        return f"{name} cannot be set for {device!r}; " + (
            f"only for {', '.join(knob.per)}" if knob.per else "no device"
        )
    if not re.fullmatch(knob.accepts, value):
        return f"{name} cannot be {value!r}; it is one of {knob.accepts}"
    return None


@dataclass(frozen=True)
class NodeSettings:
    """Changed settings of a node; everything else is healthy."""

    values: Mapping[str, str]

    def text(self, name: str, device: str = "") -> str:
        """A knob's value, for one device if it was set for that alone."""
        return self.values.get(f"{name}.{device}") or self.values.get(name, KNOBS[name].healthy)

    def number(self, name: str, device: str = "") -> float:
        """The same as a number."""
        return float(self.text(name, device))


def load(path: Path = STATE) -> NodeSettings:
    """The node's settings; all are healthy until the first change."""
    try:
        return NodeSettings(json.loads(path.read_text()))
    except FileNotFoundError:
        return NodeSettings({})


def token_of(path: Path) -> str:
    """The token in ASKED or ANSWERED; "" before the first."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
