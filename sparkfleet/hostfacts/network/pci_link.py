"""PCIe links of a node's network cards."""

from __future__ import annotations

import re

from sparkfleet.hostfacts.fact import Fact, unexpected_output
from sparkfleet.values import Value


class PciLink(Value):
    """PCIe link of one network function. A healthy half of a Spark's ConnectX-7 has 32 GT/s and 4 lanes."""

    gt_per_s: float
    """Transfers per second and lane, 1e9; PCIe Gen5 is 32."""
    width: int
    """Lanes."""


class ReadPciLink:
    """PCIe speed and width of one netdev's function, from sysfs: `lspci` prints them only for root."""

    fine = (0, 2)
    """`grep` exits with 2 if one of the files is missing."""

    def __init__(self, netdev: str) -> None:
        device = f"/sys/class/net/{netdev}/device"
        self.argv = ("grep", "-sH", ".", f"{device}/current_link_speed", f"{device}/current_link_width")

    @staticmethod
    def parse(output: str) -> PciLink:
        """Link from `path:value` lines. Raises FactError if one of the two is missing: the device is no PCI function."""
        speed = re.search(r"current_link_speed:([0-9]{1,3}(?:\.[0-9])?) GT/s", output)
        width = re.search(r"current_link_width:([0-9]{1,3})$", output, re.MULTILINE)
        if speed is None or width is None:
            raise unexpected_output("the PCIe link", output)
        return PciLink(gt_per_s=float(speed[1]), width=int(width[1]))


class ReadPciLinks(Fact[dict[str, PciLink]]):
    """Reads the PCIe links of every Mellanox function, by address. Needs root: otherwise `lspci` omits them."""

    argv = ("lspci", "-D", "-vv", "-d", "15b3:")

    @staticmethod
    def parse(output: str) -> dict[str, PciLink]:
        """Links by address; functions without an `LnkSta` line (no root) are left out."""
        found: dict[str, PciLink] = {}
        for block in re.split(r"\n\s*\n", output):
            address = re.match(r"\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", block)
            status = re.search(
                r"LnkSta:\s+Speed ([0-9]{1,3}(?:\.[0-9])?)GT/s[^,\n]*, Width x([0-9]{1,3})", block
            )
            if address and status:
                found[address[1]] = PciLink(gt_per_s=float(status[1]), width=int(status[2]))
        return found
