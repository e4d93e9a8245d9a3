"""The GPU: name, driver, clock, power, and the processes on it.

`nvidia-smi` prints `[N/A]` if a GB10 has no value: all of its memory fields, the power limit, the fan. A missing value is
None, never 0.
"""

from __future__ import annotations

import re

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, failed, number, present, text, unexpected_output
from sparkfleet.hostfacts.node import Gpu
from sparkfleet.units import MIB
from sparkfleet.values import Value

NO_DEVICES = "No devices were found"
LOST = "Unable to determine the device handle"
"""`nvidia-smi` of a GPU that fell off the bus; newer drivers print NO_DEVICES behind it, with exit code 0 or another."""
_MISMATCH = "version mismatch"
_COMMON_REASONS = {0x1: "idle", 0x2: "clocks set", 0x4: "software power cap", 0x8: "hardware slowdown",
                   0x20: "software thermal", 0x40: "hardware thermal", 0x80: "hardware power brake"}  # fmt: skip
"""Bits of `clocks_event_reasons.active`, nvml.h."""

SLOWDOWNS = frozenset({"software thermal", "hardware slowdown", "hardware thermal", "hardware power brake"})
"""Reasons that are heat or the power supply. The software power cap is none: a Spark's 140 W are shared with its CPU."""


class GpuState(Value):
    """One GPU as `nvidia-smi` reports it. None: not reported."""

    name: str
    driver: str
    compute_capability: str | None = None
    """12.1 for a GB10."""
    temperature_c: float | None = None
    power_w: float | None = None
    utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    most_sm_clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Reasons for a clock below the maximum; None if not reported."""

    @property
    def gpu(self) -> Gpu:
        """The part of it that planning needs."""
        return Gpu(name=self.name, driver=self.driver)


class ReadGpuState(Fact[tuple[GpuState, ...]]):
    """Reads every GPU of the node: one on a Spark, an empty tuple if the driver finds no device."""

    argv = (
        "nvidia-smi",
        "--query-gpu=name,driver_version,pci.bus_id,compute_cap,pstate,temperature.gpu,power.draw,"
        "utilization.gpu,clocks.current.sm,clocks.max.sm,clocks_event_reasons.active",
        "--format=csv,noheader,nounits",
    )

    @staticmethod
    def parse(output: str) -> tuple[GpuState, ...]:
        """One GPU per line. Units are accepted, because some drivers print them despite `nounits`."""
        lines = [line for line in output.splitlines()[:64] if line.strip()]
        if any(line.startswith(NO_DEVICES) for line in lines):
            return ()
        return tuple(_gpu(line) for line in lines)

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> tuple[GpuState, ...]:
        """Recognises also a lost GPU, and a mismatch of `nvidia-smi` and its driver, which are reported on stdout."""
        printed = f"{stdout[:2000]}\n{stderr[:2000]}"
        if lost := next((line for line in printed.splitlines() if LOST in line), ""):
            raise FactError(
                f"nvidia-smi: {text(' '.join(lost.split())).rstrip('.')}.",
                means="The driver has lost the GPU: it fell off the bus (Xid 79), or its firmware failed.",
                do="sudo reboot",
            )
        if NO_DEVICES in printed:
            return ()
        if exit_code != 0 and _MISMATCH in printed:
            raise FactError(
                "nvidia-smi: Driver/library version mismatch.",
                means="An upgrade left the driver's kernel module and its libraries at different versions.",
                do="sudo apt full-upgrade && sudo reboot",
            )
        return super().answer(exit_code, stdout, stderr or stdout)


def _gpu(line: str) -> GpuState:
    fields = [field.strip() for field in line.split(",")]
    name, driver = (present(field) for field in (*fields[:2], "", "")[:2])
    if len(fields) != 11 or name is None or driver is None:
        raise unexpected_output("the state of the GPU", line)
    return GpuState(
        name=name,
        driver=driver,
        compute_capability=present(fields[3]),
        temperature_c=number(fields[5]),
        power_w=number(fields[6]),
        utilization_percent=number(fields[7]),
        sm_clock_mhz=number(fields[8]),
        most_sm_clock_mhz=number(fields[9]),
        throttled=_reasons(fields[10]),
    )


def _reasons(field: str) -> tuple[str, ...] | None:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", field):
        return None
    mask = int(field, 16)
    return tuple(name for bit, name in _COMMON_REASONS.items() if mask & bit)


class GpuProcess(Value):
    """A process that computes on the GPU."""

    pid: int
    name: str
    memory: int | None
    """Bytes of unified memory that the driver holds for it; unlike the totals, a GB10 reports this."""


class ReadGpuProcesses(Fact[tuple[GpuProcess, ...]]):
    """Reads the processes that compute on the GPU. Empty output means none."""

    argv = (
        "nvidia-smi",
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    )

    @staticmethod
    def parse(output: str) -> tuple[GpuProcess, ...]:
        """One process per line; a name may contain commas."""
        lines = [line for line in output.splitlines()[:4096] if line.strip()]
        if any(line.startswith(NO_DEVICES) for line in lines):
            raise failed(ReadGpuProcesses.argv, 0, NO_DEVICES)
        return tuple(_process(line) for line in lines if "No running processes found" not in line)


def _process(line: str) -> GpuProcess:
    pid, _, rest = line.partition(",")
    name, comma, memory = rest.rpartition(",")
    if not re.fullmatch(r"\s{0,20}\d{1,10}\s{0,20}", pid, re.ASCII) or not comma:
        raise unexpected_output("the processes on the GPU", line)
    held = number(memory)
    return GpuProcess(
        pid=int(pid), name=present(name) or "", memory=None if held is None else max(0, round(held * MIB))
    )
