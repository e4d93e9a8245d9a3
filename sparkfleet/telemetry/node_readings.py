"""Readings of one node that Prometheus shows: memory, pressure, GPU, temperature, disks, kernel errors, rails.

The node's actor takes them, so that no port of ours is open on a node. Memory, pressure and rails are files of the kernel
and take a millisecond; `nvidia-smi`, the kernel's log and the disks may take seconds or hang, and are read apart.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sparkfleet.checkpoints.io.hub_cache import hub_cache
from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import number, whole
from sparkfleet.hostfacts.gpu import GpuState
from sparkfleet.hostfacts.kernel_log import KernelLog, ReadKernelLog
from sparkfleet.hostfacts.memory import MemoryMap, ReadMemoryMap
from sparkfleet.hostfacts.network.rdma import RdmaCounters, ReadRdmaCounters
from sparkfleet.telemetry.gpu_reader import GpuReader
from sparkfleet.telemetry.local_command import run_here
from sparkfleet.telemetry.rank_memory import RankMemory
from sparkfleet.values import Value

SLOW_EVERY_S = 10.0
"""Seconds between two readings of the GPU, the temperature and the disks."""
LOG_EVERY_S = 60.0
"""Seconds between two readings of the kernel's log."""
LOG_AGAIN_S = 20.0
"""Seconds from the end of one that failed to the next, or three times as long as it took, if that is more: one that never
ends in time would read the disk and keep a core busy without end."""
LOG_OLD_S = 300.0
"""Age from which the last reading no longer counts: errors of this boot stay, but later ones would not be seen."""
LOG_LIMIT_S = 20.0
"""Time limit of one: a month of a firewall's messages takes seconds, more while a model is loaded from the same disk."""
LOG_PIECE_S = 600.0
"""Seconds of the log that are read instead if the whole of this boot takes longer than that."""
LOG_OVERLAP_S = 60.0
"""Seconds of the piece before that are read again: the node's clock may be set, and a line comes late."""
LOG_WHOLE_AGAIN_S = 3600.0
"""Seconds from a reading of the whole that took too long to the next one."""
RESOURCES = ("cpu", "memory", "io")
_ERRORS = ("rx_errors", "tx_errors", "rx_dropped")


class RailDevices(Value):
    """Devices of one rail's end on this node."""

    netdev: str
    rdma: str = ""
    peer: str = ""
    """Node at the other end of its cable; "" for a switch."""


class RailReading(Value):
    """One rail's end. Counters begin when the driver is loaded."""

    netdev: str
    up: bool | None = None
    """True if it has a carrier; None if the netdev is missing."""
    peer: str = ""
    """Node at the other end of its cable; "" for a switch."""
    end_away: bool = False
    """True if the node at one of its ends is drained or off: then nothing needs it, and it may well be down."""
    carrier_changes: int | None = None
    received: int | None = None
    """Bytes through the kernel's network stack."""
    sent: int | None = None
    errors: Mapping[str, int] = {}
    rdma: str = ""
    rdma_counters: RdmaCounters | None = None

    @property
    def is_lost(self) -> bool:
        """True if it is down although both of its nodes are there."""
        return not self.up and not self.end_away


class DiskSpace(Value):
    """Space of a directory's disk, bytes."""

    free: int
    total: int


class SlowReadings(Value):
    """Readings that may take seconds. None: not read."""

    gpus: tuple[GpuState, ...] | None = None
    gpu_trouble: str = ""
    """The reason for which a GPU that is there cannot be read; "" if it was, or there is none."""
    temperature_c: float | None = None
    """Highest of the thermal zones."""
    disks: Mapping[str, DiskSpace] = {}
    """By name (`catalogue.PLACES`)."""
    kernel: KernelLog | None = None
    kernel_log_readable: bool | None = None
    """False if the last reading of the kernel's log failed; None before the first."""
    booted: float = 0.0
    """Unix time at which the node's monotonic clock began: the kernel's log has times of that clock."""
    ranks: tuple[RankMemory, ...] = ()
    """Memory of the ranks that run here."""


class NodeReadings(Value):
    """Readings of one node."""

    memory: MemoryMap
    pressure: Mapping[str, Mapping[str, float]] = {}
    """By resource: "some" and "full", share of the last ten seconds, 0 to 1."""
    rails: tuple[RailReading, ...] = ()
    slow: SlowReadings = SlowReadings()


class NodeReader:
    """Reads this node. `root`: "/", or another tree in tests."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._gpu = GpuReader(root)
        self._kernel: KernelLog | None = None
        self._log_readable: bool | None = None
        self._log_due = self._log_end = self._log_at = self._log_whole_due = -math.inf

    def read(self, rails: tuple[RailDevices, ...] = (), slow: SlowReadings | None = None) -> NodeReadings:
        """Reads files of the kernel; takes about a millisecond. `slow` is added as it is."""
        return NodeReadings(
            memory=ReadMemoryMap.parse((self._root / "proc/meminfo").read_text()),
            pressure={name: found for name in RESOURCES if (found := self._pressure(name))},
            rails=tuple(self._rail(one) for one in rails),
            slow=slow or SlowReadings(),
        )

    def read_slow(self) -> SlowReadings:
        """Reads GPU, temperature and the kernel's log; takes up to seconds. Disks are apart: `read_disks`."""
        gpu = self._gpu.read()
        return SlowReadings(
            gpus=gpu.gpus,
            gpu_trouble=gpu.trouble,
            temperature_c=self._temperature(),
            kernel=self._kernel_log(),
            kernel_log_readable=self._log_readable,
            booted=time.time() - time.monotonic(),
        )

    def _pressure(self, resource: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for line in self._text(f"proc/pressure/{resource}").splitlines():
            share, _, rest = line.partition(" avg10=")
            value = number(rest.partition(" ")[0])
            if share in ("some", "full") and value is not None:
                found[share] = value / 100
        return found

    def _rail(self, rail: RailDevices) -> RailReading:
        base = f"sys/class/net/{rail.netdev}"
        if not (self._root / base).exists():
            return RailReading(netdev=rail.netdev, peer=rail.peer, rdma=rail.rdma)
        errors = {
            name: value for name in _ERRORS if (value := self._count(f"{base}/statistics/{name}")) is not None
        }
        return RailReading(
            netdev=rail.netdev,
            up=self._text(f"{base}/carrier").strip() == "1",
            peer=rail.peer,
            carrier_changes=self._count(f"{base}/carrier_changes"),
            received=self._count(f"{base}/statistics/rx_bytes"),
            sent=self._count(f"{base}/statistics/tx_bytes"),
            errors=errors,
            rdma=rail.rdma,
            rdma_counters=self._rdma(rail.rdma) if rail.rdma else None,
        )

    def _rdma(self, device: str) -> RdmaCounters | None:
        base = f"sys/class/infiniband/{device}/ports/1"
        lines = [f"/{base}/{name}:{self._text(f'{base}/{name}').strip()}" for name in ReadRdmaCounters.NAMES]
        try:
            return ReadRdmaCounters.parse("\n".join(lines))
        except FactError:
            return None

    def _temperature(self) -> float | None:
        zones = (self._root / "sys/class/thermal").glob("thermal_zone*/temp")
        read = [number(self._text(str(zone.relative_to(self._root)))) for zone in zones]
        found = [value / 1000 for value in read if value is not None and 0 < value < 200_000]
        return max(found, default=None)

    def _kernel_log(self) -> KernelLog | None:
        now = self._clock()
        if now >= self._log_due:
            try:
                self._kernel = self._read_log(now)
            except (FactError, OSError, subprocess.SubprocessError):
                ended = self._clock()
                self._log_readable, self._log_due = False, ended + max(LOG_AGAIN_S, 3 * (ended - now))
            else:
                self._log_readable, self._log_due = True, now + LOG_EVERY_S
                self._log_at, self._log_end = now, now + LOG_OLD_S
        return self._kernel if now < self._log_end else None

    def _read_log(self, now: float) -> KernelLog:
        """The whole log of this boot or, while that takes too long, what is known with what came since."""
        if now >= self._log_whole_due:
            try:
                return _kernel_log()
            except subprocess.TimeoutExpired:
                self._log_whole_due = now + LOG_WHOLE_AGAIN_S
        since_s = min(LOG_PIECE_S, now - self._log_at + LOG_OVERLAP_S)
        piece = _kernel_log(since_s, self._kernel.last_at if self._kernel else 0.0)
        return self._kernel.followed_by(piece) if self._kernel else piece

    def _count(self, path: str) -> int | None:
        value = number(self._text(path))
        return None if value is None else whole(int(value))

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors="replace")[:4096]
        except OSError:  # the counter, the zone or the netdev does not exist here; EINVAL: the netdev is down
            return ""


def _kernel_log(since_s: float | None = None, after: float = 0.0) -> KernelLog:
    """Errors of this boot, or of its last seconds, that came after this time of the node's monotonic clock.

    Raises FactError, OSError and SubprocessError.
    """
    argv: tuple[str, ...] = ReadKernelLog.argv_here
    if since_s is not None:
        argv = (*argv, "--since", f"{math.ceil(since_s)} seconds ago")
    code, out, err = run_here(argv, LOG_LIMIT_S)
    return ReadKernelLog.answer(code, ReadKernelLog.later(out, after), err)


def read_disks() -> dict[str, DiskSpace]:
    """Space of the disks by name (`catalogue.PLACES`). Does not return as long as one of them hangs: a NAS that is away."""
    return {name: space for name, path in _places().items() if (space := _space(path)) is not None}


def _places() -> dict[str, str]:
    home = os.path.expanduser("~")
    hub = str(hub_cache(os.environ, Path(home)))
    return {"root": "/", "home": home, "hub": hub, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 (their space)


def _space(path: str) -> DiskSpace | None:
    while path and not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(free=found.f_bavail * found.f_frsize, total=found.f_blocks * found.f_frsize)
