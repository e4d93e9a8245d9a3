"""lspci, dmesg and dmidecode of a Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sparkfleet.lab.inside.commands import pass_on
from sparkfleet.lab.inside.node_settings import HCAS, NodeSettings

_XID_AT = 932.4
"""Seconds after the boot."""

_CX7 = "Mellanox Technologies MT2910 Family [ConnectX-7]"
_SLOTS = {"rocep1s0f0": "0000:01:00.0", "rocep1s0f1": "0000:01:00.1", "roceP2p1s0f0": "0002:01:00.0",
          "roceP2p1s0f1": "0002:01:00.1"}  # fmt: skip
_GPU_IDS = {"rtx-spark": "2e03", "gh200": "2342", "jetson-thor": "2b00"}


def _devices(settings: NodeSettings) -> list[tuple[str, str, str, str, str]]:
    """Slot, class, class id, name, vendor:device."""
    gpu = _GPU_IDS.get(settings.text("machine"), "2e12")
    cards = [(_SLOTS[hca], "Ethernet controller", "0200", _CX7, "15b3:1021") for hca in HCAS]
    lan = (
        "0007:01:00.0",
        "Ethernet controller",
        "0200",
        "Realtek Semiconductor Co., Ltd. Device 8127",
        "10ec:8127",
    )
    graphics = (
        "000f:01:00.0",
        "VGA compatible controller",
        "0300",
        f"NVIDIA Corporation Device {gpu}",
        f"10de:{gpu}",
    )
    return sorted([*cards, lan, graphics])


def lspci(argv: list[str], settings: NodeSettings) -> int:
    """All devices; -s SLOT, -d VENDOR:DEVICE, -n, -nn and -v to -vvv as in pciutils."""
    slot, wanted, flags = _asked(argv[1:])
    for device in _devices(settings):
        if _short(slot) in ("", _short(device[0])) and _matches(wanted, device[4]):
            print(_line(device, flags))
            if "v" in flags:
                print(_details(device, settings, flags.count("v")))
    return 0


def _asked(arguments: list[str]) -> tuple[str, str, str]:
    """The slot, the vendor:device and all other letters."""
    values, flags, rest = {"s": "", "d": ""}, "", iter(arguments)
    for argument in rest:
        letter, value = argument[1:2], argument[2:]
        if letter in values:
            values[letter] = value or next(rest, "")
        else:
            flags += argument.lstrip("-")
    return values["s"], values["d"], flags


def _short(slot: str) -> str:
    return slot.lower().removeprefix("0000:")


def _matches(wanted: str, found: str) -> bool:
    vendor, _, device = wanted.lower().partition(":")
    return vendor in ("", "*", found[:4]) and device.split(":")[0] in ("", "*", found[5:])


def _line(device: tuple[str, str, str, str, str], flags: str) -> str:
    slot, kind, code, name, ids = device
    if "nn" in flags:
        name = name.rsplit(" ", 1)[0] if name.endswith(ids[5:]) else name
        return f"{slot} {kind} [{code}]: {name} [{ids}]" + (" (rev a1)" if ids.startswith("10de") else "")
    if "n" in flags:
        return f"{slot} {code}: {ids}"
    return f"{slot} {kind}: {name}" + (" (rev a1)" if ids.startswith("10de") else "")


def _details(device: tuple[str, str, str, str, str], settings: NodeSettings, verbosity: int) -> str:
    hca = next((name for name, slot in _SLOTS.items() if slot == device[0]), None)
    driver = (
        "\tKernel driver in use: "
        + ("mlx5_core" if hca else "nvidia" if "10de" in device[4] else "r8127")
        + "\n"
    )
    if hca is None or verbosity < 2:
        return driver
    width = settings.text("pcie_width", hca)
    narrow = "" if width == "4" else " (downgraded)"
    return (
        "\tCapabilities: [60] Express (v2) Endpoint, IntMsgNum 0\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported\n"
        f"\t\tLnkSta:\tSpeed 32GT/s, Width x{width}{narrow}\n"
        f"\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-\n{driver}"
    )


def dmesg(argv: list[str], settings: NodeSettings) -> int:
    """The lines of a Spark's boot about its links, and an Xid if one was set."""
    lines = []
    for index, hca in enumerate(HCAS):
        width = int(settings.number("pcie_width", hca))
        limit = (
            ""
            if width == 4
            else f", limited by 32.0 GT/s PCIe x{width} link at 0000:00:00.0 (capable of 126.028 Gb/s)"
        )
        have = f"{31.507 * width:.3f} Gb/s available PCIe bandwidth{limit or ' (32.0 GT/s PCIe x4 link)'}"
        lines.append((4.1 + index / 10, f"mlx5_core {_SLOTS[hca]}: {have}"))
        lines.append((4.15 + index / 10, f"mlx5_core {_SLOTS[hca]}: mlx5_pcie_event:326:(pid 12): Detected insufficient "
                                         "power on the PCIe slot (27W)."))  # fmt: skip
    if settings.text("xid") != "0":
        lines.append((_XID_AT, _xid(settings)))
    for at, text in sorted(lines):
        print(f"[{at:12.6f}] {text}")
    return 0


def journalctl(argv: list[str], settings: NodeSettings) -> int:
    """An Xid that was set, in the kernel's log (`-k`); the boot before (`-b -1`), as it was set to have ended; everything
    else is the system's own, which has no log of a node."""
    if "-1" in argv:
        return _boot_before(settings.text("boot_before"))
    if "-k" not in argv or settings.text("xid") == "0":
        return pass_on("journalctl", argv[1:])
    print(f"[{_XID_AT:12.6f}] kernel: {_xid(settings)}" if "short-monotonic" in argv else _xid(settings))
    return 0


def _boot_before(kind: str) -> int:
    """The last lines of an earlier boot, an hour ago, with `-o short-unix`."""
    if kind == "none":
        print(
            "Data from the specified boot (-1) is not available: No such boot ID in journal", file=sys.stderr
        )
        return 1
    lines = [
        "systemd[1]: Started a service.",
        "kernel: pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error received",
    ]
    lines = lines[: 2 if kind == "pcie" else 1] + ["systemd-journald[412]: Journal stopped"] * (
        kind == "shutdown"
    )
    for at, line in enumerate(lines, int(time.time()) - 3600):
        print(f"{at}.000001 {line}")
    return 0


def _xid(settings: NodeSettings) -> str:
    return f"NVRM: Xid (PCI:000f:01:00): {settings.text('xid')}, pid=4321, name=python3"


def dmidecode(argv: list[str], settings: NodeSettings) -> int:
    """`-s KEYWORD`, from the node's DMI files."""
    keys = {"system-manufacturer": "sys_vendor", "system-product-name": "product_name", "bios-version": "bios_version",
            "system-version": "product_version", "system-serial-number": "product_serial"}  # fmt: skip
    keyword = argv[-1]
    if keyword not in keys:
        print(f"The lab's dmidecode has no capture of: {' '.join(argv[1:])}", file=sys.stderr)
        return 2
    try:
        print(Path("/sys/class/dmi/id", keys[keyword]).read_text().strip())
    except PermissionError:
        print("/dev/mem: Permission denied", file=sys.stderr)
        return 1
    return 0
