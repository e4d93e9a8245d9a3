"""nvidia-smi of a GB10: memory fields are [N/A], per-process memory is not (driver 580, captures of 2025-10 to 2026-10)."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkfleet.lab.inside.node_settings import NodeSettings

NO_VALUE = "[N/A]"
_HOLDER = Path("/run/lab/state/holder.pid")
_NAMES = {"jetson-thor": "NVIDIA Thor", "gh200": "NVIDIA GH200 480GB", "rtx-spark": "NVIDIA RTX Spark N1X"}
_CAPABILITIES = {"jetson-thor": "11.0", "gh200": "9.0"}
_MEMORY_MIB = {"gh200": 97871}
"""Machines whose GPU has its own memory, which nvidia-smi reports."""
_LOADS = {
    "idle": (208, 4.05, 0, "P8"), "busy": (2418, 38.41, 96, "P0"), "wedged": (650, 14.20, 96, "P0"),
    "throttled": (1210, 22.30, 96, "P0"),
}  # fmt: skip
"""SM clock MHz, power W, utilisation %, state. Wedged: high use, low clock and power, and no throttle reason."""


@dataclass(frozen=True)
class SimulatedGpu:
    """The node's GPU, by its settings."""

    settings: NodeSettings

    @property
    def machine(self) -> str:
        """Kind of its machine."""
        return self.settings.text("machine")

    @property
    def name(self) -> str:
        """The product name."""
        return _NAMES.get(self.machine, "NVIDIA GB10")

    @property
    def uuid(self) -> str:
        """UUID of this node's GPU."""
        digest = hashlib.sha256(socket.gethostname().encode()).hexdigest()
        return "GPU-" + "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))

    @property
    def load(self) -> tuple[int, float, int, str]:
        """Clock MHz, power W, use %, performance state."""
        return _LOADS[self.settings.text("clock")]

    @property
    def is_throttled(self) -> bool:
        """True if heat holds its clock down."""
        return self.settings.text("clock") == "throttled"

    def memory(self, part: str) -> str:
        """Total, used or free MiB, if it has its own memory."""
        total = _MEMORY_MIB.get(self.machine)
        if total is None:
            return NO_VALUE
        used = sum(process.mib for process in self.processes())
        amounts = {"total": total, "used": used, "free": total - used}
        return f"{amounts[part]} MiB"

    def processes(self) -> Iterator[SimulatedGpuProcess]:
        """The leftover process, while it runs."""
        try:
            pid = int(_HOLDER.read_text())
            os.kill(pid, 0)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return
        except PermissionError:
            pass  # another user's, and running
        yield SimulatedGpuProcess(pid, "VLLM::EngineCore", int(self.settings.text("holder_mib")))


@dataclass(frozen=True)
class SimulatedGpuProcess:
    """A process with memory on the GPU."""

    pid: int
    name: str
    mib: int


_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown",
            "hw_power_brake_slowdown", "sw_thermal_slowdown", "sync_boost")  # fmt: skip

_FIELDS: dict[str, Callable[[SimulatedGpu], str]] = {
    "index": lambda gpu: "0",
    "count": lambda gpu: "1",
    "name": lambda gpu: gpu.name,
    "gpu_name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "gpu_uuid": lambda gpu: gpu.uuid,
    "driver_version": lambda gpu: gpu.settings.text("driver"),
    "compute_cap": lambda gpu: _CAPABILITIES.get(gpu.machine, "12.1"),
    "pci.bus_id": lambda gpu: "0000000F:01:00.0",
    "gpu_bus_id": lambda gpu: "0000000F:01:00.0",
    "pci.device_id": lambda gpu: {"rtx-spark": "0x2E0310DE", "gh200": "0x234210DE"}.get(gpu.machine, "0x2E1210DE"),
    "pstate": lambda gpu: gpu.load[3],
    "persistence_mode": lambda gpu: "Enabled",
    "temperature.gpu": lambda gpu: gpu.settings.text("temperature"),
    "utilization.gpu": lambda gpu: f"{gpu.load[2]} %",
    "utilization.memory": lambda gpu: "0 %",
    "power.draw": lambda gpu: f"{gpu.load[1]:.2f} W",
    "power.draw.instant": lambda gpu: f"{gpu.load[1]:.2f} W",
    "clocks.sm": lambda gpu: f"{gpu.load[0]} MHz",
    "clocks.current.sm": lambda gpu: f"{gpu.load[0]} MHz",
    "clocks.gr": lambda gpu: f"{gpu.load[0]} MHz",
    "clocks.current.graphics": lambda gpu: f"{gpu.load[0]} MHz",
    "clocks.max.sm": lambda gpu: "3003 MHz",
    "clocks.max.graphics": lambda gpu: "3003 MHz",
    "memory.total": lambda gpu: gpu.memory("total"),
    "memory.used": lambda gpu: gpu.memory("used"),
    "memory.free": lambda gpu: gpu.memory("free"),
    "pcie.link.gen.current": lambda gpu: "1",
    "pcie.link.width.current": lambda gpu: "1",
    "clocks_event_reasons.active": lambda gpu: f"0x{_reasons(gpu):016x}",
    "clocks_throttle_reasons.active": lambda gpu: f"0x{_reasons(gpu):016x}",
    **{f"{prefix}.{reason}": (lambda gpu, reason=reason: _reason(gpu, reason))  # type: ignore[misc]
       for prefix in ("clocks_event_reasons", "clocks_throttle_reasons") for reason in _REASONS},
}  # fmt: skip
_NONE_HERE = ("power.limit", "power.max_limit", "power.min_limit", "power.default_limit", "enforced.power.limit",
              "fan.speed", "clocks.mem", "clocks.current.memory", "clocks.max.mem", "clocks.max.memory", "serial",
              "gpu_serial", "temperature.memory", "ecc.mode.current", "mig.mode.current", "vbios_version",
              "ecc.errors.uncorrected.volatile.total", "memory.reserved")  # fmt: skip
_UNITS = {"temperature.gpu": "", "memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB",
          "power.draw": "W", "power.draw.instant": "W", "power.limit": "W", "utilization.gpu": "%",
          "utilization.memory": "%", "clocks.sm": "MHz", "clocks.current.sm": "MHz", "clocks.max.sm": "MHz",
          "clocks.gr": "MHz", "used_memory": "MiB", "used_gpu_memory": "MiB"}  # fmt: skip


_THROTTLED = {"hw_slowdown": 0x8, "hw_thermal_slowdown": 0x40}


def _reason(gpu: SimulatedGpu, reason: str) -> str:
    active = gpu.load[2] == 0 if reason == "gpu_idle" else gpu.is_throttled and reason in _THROTTLED
    return "Active" if active else "Not Active"


def _reasons(gpu: SimulatedGpu) -> int:
    """Bits of the reasons for the clock, nvml.h."""
    return sum(_THROTTLED.values()) if gpu.is_throttled else int(gpu.load[2] == 0)


def nvidia_smi(argv: list[str], settings: NodeSettings) -> int:
    """Dispatches on the options that sparkfleet and people use."""
    failed = _unwell(settings)
    if failed is not None:
        return failed
    options = _options(argv[1:])
    gpu = SimulatedGpu(settings)
    if "--version" in options:
        return _version(gpu)
    if "-L" in options or "--list-gpus" in options:
        print(f"GPU 0: {gpu.name} (UUID: {gpu.uuid})")
        return 0
    for name, table in (("--query-gpu", _gpu_rows), ("--query-compute-apps", _app_rows)):
        if name in options:
            return _query(options, options[name].split(","), table, gpu)
    if options:
        print(f"The lab's nvidia-smi has no capture of: {' '.join(argv[1:])}", file=sys.stderr)
        return 2
    _table(gpu)
    return 0


def _unwell(settings: NodeSettings) -> int | None:
    if settings.text("gpu") == "missing":
        print("No devices were found")
        return 6
    if settings.text("gpu") == "no-driver":
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
              "NVIDIA driver is installed and running.\n")  # fmt: skip
        return 9
    return None


def _options(arguments: list[str]) -> dict[str, str]:
    """Options, as `--query-gpu=name` or `--format csv`; `-i 0` and `--id=0` are the only GPU."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        takes = name in ("--query-gpu", "--query-compute-apps", "--format", "-i", "--id")
        found[name] = value if equals or not takes else next(rest, "")
    found.pop("-i", None)
    found.pop("--id", None)
    return found


def _query(
    options: dict[str, str],
    fields: list[str],
    table: Callable[[SimulatedGpu, list[str]], list[list[str]]],
    gpu: SimulatedGpu,
) -> int:
    wanted = [field.strip() for field in fields]
    form = [part.strip() for part in options.get("--format", "").split(",")]
    if "csv" not in form:
        print("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
        return 1
    try:
        rows = table(gpu, wanted)
    except KeyError as unknown:
        print(f'Field "{unknown.args[0]}" is not a valid field to query.\n')
        return 2
    if "noheader" not in form:
        print(", ".join(_header(field, "nounits" in form) for field in wanted))
    for row in rows:
        print(", ".join(_plain(value) if "nounits" in form else value for value in row))
    return 0


def _header(field: str, no_units: bool) -> str:
    unit = _UNITS.get(field, "")
    return f"{field} [{unit}]" if unit else field


def _plain(value: str) -> str:
    number, _, unit = value.partition(" ")
    return number if unit in ("MiB", "W", "%", "MHz") else value


def _gpu_rows(gpu: SimulatedGpu, fields: list[str]) -> list[list[str]]:
    def value(field: str) -> str:
        if field == "timestamp":
            return "2026/11/20 10:00:00.000"
        return NO_VALUE if field in _NONE_HERE else _FIELDS[field](gpu)

    return [[value(field) for field in fields]]


def _app_rows(gpu: SimulatedGpu, fields: list[str]) -> list[list[str]]:
    def value(process: SimulatedGpuProcess, field: str) -> str:
        return {
            "pid": str(process.pid),
            "process_name": process.name,
            "name": process.name,
            "used_memory": f"{process.mib} MiB",
            "used_gpu_memory": f"{process.mib} MiB",
            "gpu_uuid": gpu.uuid,
            "gpu_name": gpu.name,
            "gpu_bus_id": "0000000F:01:00.0",
        }[field]

    return [[value(process, field) for field in fields] for process in gpu.processes()]


def _version(gpu: SimulatedGpu) -> int:
    driver = gpu.settings.text("driver")
    for name, value in (("NVIDIA-SMI version", driver), ("NVML version", driver), ("DRIVER version", driver),
                        ("CUDA Version", gpu.settings.text("cuda"))):  # fmt: skip
        print(f"{name:<20}: {value}")
    return 0


_BAR = "+-----------------------------------------------------------------------------------------+"
_COLUMNS = "+-----------------------------------------+------------------------+----------------------+"


def _table(gpu: SimulatedGpu) -> None:
    driver, cuda = gpu.settings.text("driver"), gpu.settings.text("cuda")
    _, watts, use, pstate = gpu.load
    memory = (
        "Not Supported"
        if gpu.memory("total") == NO_VALUE
        else f"{gpu.memory('used')} / {gpu.memory('total')}"
    )
    print(_BAR)
    print(f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |")
    print(_COLUMNS)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print("|=========================================+========================+======================|")
    print(f"|   0  {gpu.name:<31} On |   0000000F:01:00.0 Off |                  N/A |")
    heat = f"{gpu.settings.text('temperature')}C"
    print(
        f"| N/A  {heat:>4}    {pstate}            {watts:>3.0f}W /  N/A  | {memory:<22} | {use:>6}%      Default |"
    )
    print("|                                         |                        |                  N/A |")
    print(f"{_COLUMNS}\n\n{_BAR}")
    print("| Processes:                                                                              |")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|        ID   ID                                                               Usage      |")
    print("|=========================================================================================|")
    listed = list(gpu.processes())
    for process in listed:
        print(f"|    0   N/A  N/A      {process.pid:>10}      C   {process.name:<36} {process.mib:>6}MiB |")
    if not listed:
        print("|  No running processes found                                                             |")
    print(_BAR)
