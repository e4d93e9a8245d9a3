"""Unified memory in detail: the parts that the kernel can attribute, and the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, by_file, number, text
from sparkfleet.hostfacts.machine import GREP
from sparkfleet.hostfacts.node import ReadMemory, UnifiedMemory
from sparkfleet.units import KIB, MIB
from sparkfleet.values import Value

_LINE = re.compile(r"^([A-Za-z_()0-9]{1,40}):[ \t]+(\d{1,15})(?: kB)?$", re.MULTILINE | re.ASCII)

_ZONE = re.compile(r"Node +\d{1,3}, zone +\w{1,12}((?: +\d{1,9}){1,20}) *$", re.ASCII)
_HUGE = re.compile(r"Hugepagesize: +(\d{1,9}) kB", re.ASCII)
PAGES = (4 * KIB, 16 * KIB, 64 * KIB)
"""Sizes of a page that arm64 has; another one comes of a huge page of another size, set at boot."""
LARGE = 16 * MIB
"""Size from which a block of free memory counts as large: FujitsuPolycom/sparkring issue 173 counts these."""

NAMED = (
    "MemFree",
    "Buffers",
    "Cached",
    "SwapCached",
    "AnonPages",
    "SUnreclaim",
    "PageTables",
    "SecPageTables",
    "KernelStack",
    "Percpu",
    "VmallocUsed",
    "Hugetlb",
)
"""Lines of `/proc/meminfo` that do not overlap. `Cached` includes shared memory; reclaimable slab is added."""


class MemoryMap(Value):
    """Memory map of a node, bytes."""

    total: int
    free: int
    available: int
    page_cache: int
    """Files in memory. CUDA counts it as used, and so do engines when they start."""
    swap_total: int
    swap_used: int
    named: int
    """All memory that the kernel attributes to a use, free memory included."""

    @property
    def unaccounted(self) -> int:
        """Memory that the kernel attributes to no use: on a Spark the GPU driver's, for running processes or leaked."""
        return max(0, self.total - self.named)

    @property
    def memory(self) -> UnifiedMemory:
        """The part of it that planning needs."""
        return UnifiedMemory(total=self.total, available=self.available)


class ReadMemoryMap(Fact[MemoryMap]):
    """Reads all of `/proc/meminfo`."""

    argv = ReadMemory.argv

    @staticmethod
    def parse(output: str) -> MemoryMap:
        """Bytes, from lines in KiB."""
        basic = ReadMemory.parse(output)
        lines = {name: int(value) * KIB for name, value in _LINE.findall(output)}
        if "MemFree" not in lines:
            raise FactError("/proc/meminfo has no MemFree line.", means="The file is not the kernel's own.")
        return MemoryMap(
            total=basic.total,
            free=lines["MemFree"],
            available=basic.available,
            page_cache=max(0, lines.get("Cached", 0) + lines.get("Buffers", 0) - lines.get("Shmem", 0)),
            swap_total=lines.get("SwapTotal", 0),
            swap_used=max(0, lines.get("SwapTotal", 0) - lines.get("SwapFree", 0)),
            named=_named(lines),
        )


def _named(lines: Mapping[str, int]) -> int:
    # Some kernels print only KReclaimable, which includes SReclaimable.
    reclaimable = max(lines.get("SReclaimable", 0), lines.get("KReclaimable", 0))
    return reclaimable + sum(lines.get(name, 0) for name in NAMED)


class FreeBlocks(Value):
    """Free memory by the size of its contiguous blocks, bytes."""

    free: int
    """In blocks of any size."""
    large: int | None = None
    """In blocks of `LARGE` or more; None if the kernel keeps none of that size."""


class ReadFreeBlocks(Fact[FreeBlocks]):
    """Reads the blocks of free memory of all zones, and the size of a page."""

    argv = (*GREP, "/proc/buddyinfo", "/proc/meminfo")
    fine = (0, 2)

    @staticmethod
    def parse(output: str) -> FreeBlocks:
        """A column of each zone is the number of blocks of 1, 2, 4 … pages. A huge page has an entry of 8 bytes for each."""
        files = by_file(output)
        huge = next(
            (int(found[1]) for line in files.get("/proc/meminfo", ()) if (found := _HUGE.match(line))), 0
        )
        zones = [[int(one) for one in found[1].split()] for line in files.get("/proc/buddyinfo", ())
                 if (found := _ZONE.match(line))]  # fmt: skip
        page = math.isqrt(8 * huge * KIB)
        if page not in PAGES or not zones:
            raise FactError(
                "the blocks of free memory are not known: /proc/buddyinfo, and huge pages of /proc/meminfo."
            )
        blocks = [
            (count * page << order, page << order) for zone in zones for order, count in enumerate(zone)
        ]
        large = [held for held, size in blocks if size >= LARGE]
        return FreeBlocks(free=sum(held for held, _ in blocks), large=sum(large) if large else None)


class Kernel(Value):
    """Kernel settings that affect serving. None: the kernel has no such setting."""

    release: str = ""
    """As `uname -r` prints it; "": not reported."""
    swappiness: int | None = None
    memory_pressure: float | None = None
    """Share of the last ten seconds in which all tasks waited for memory, per cent (PSI "full")."""
    command_line: str = ""
    firewall: bool | None = None
    """True if ufw is enabled; None if it is not installed."""
    fleet_firewall: bool = False
    """True if the rules of `sparkfleet fabric firewall` are on the node. Only root can read if they are loaded."""

    @property
    def kho_off(self) -> bool:
        """`kho=off` on the command line, which kernel 7.0 needs for RDMA under memory pressure."""
        return "kho=off" in self.command_line.split()


class ReadKernel(Fact[Kernel]):
    """Release, sysctls, memory pressure, the command line and whether the firewall is on."""

    argv = (
        *GREP,
        "/proc/sys/kernel/osrelease",
        "/proc/sys/vm/swappiness",
        "/proc/sys/vm/overcommit_memory",
        "/proc/pressure/memory",
        "/proc/cmdline",
        "/etc/ufw/ufw.conf",
        "/etc/sparkfleet/firewall.nft",
    )
    fine = (0, 2)

    @staticmethod
    def parse(output: str) -> Kernel:
        """Settings from lines with their paths."""
        files = by_file(output)

        def first(path: str) -> str:
            return (files.get(path) or [""])[0]

        return Kernel(
            release=text(first("/proc/sys/kernel/osrelease")),
            swappiness=_count(first("/proc/sys/vm/swappiness")),
            memory_pressure=_pressure(files.get("/proc/pressure/memory", [])),
            command_line=text(first("/proc/cmdline"), 4096),
            firewall=_firewall(files.get("/etc/ufw/ufw.conf")),
            fleet_firewall=any(
                line.endswith("drop") for line in files.get("/etc/sparkfleet/firewall.nft", [])
            ),
        )


def _count(line: str) -> int | None:
    found = number(line)
    return None if found is None else int(found)


def _pressure(lines: list[str]) -> float | None:
    for line in lines:
        if found := re.match(r"full avg10=(\d{1,3}\.\d{1,4})\b", line, re.ASCII):
            return float(found[1])
    return None


def _firewall(lines: list[str] | None) -> bool | None:
    if lines is None:
        return None
    return any(line.strip().lower() == "enabled=yes" for line in lines)
