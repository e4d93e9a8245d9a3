"""Kernel errors since boot, and the installed packages that known problems depend on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, failed, text
from sparkfleet.values import Value

_XID = re.compile(r"NVRM: Xid \([^)]{1,40}\): (\d{1,4})", re.ASCII)
_AT = re.compile(r"\[ *(\d{1,12}\.\d{1,6})\] ", re.ASCII)
KEPT = 5000
"""Relevant lines that a node's own reading goes back."""
HIDDEN = ("not seeing messages from other users", "No journal files")
"""Words of `journalctl` for a log that this user may not read."""


class KernelLog(Value):
    """Known errors in the kernel's log of this boot."""

    out_of_gpu_memory: int
    """Lines with NV_ERR_NO_MEMORY: the driver could not allocate, which comes before the host freezes."""
    xids: tuple[int, ...]
    """Errors of the GPU by their number, in order."""
    slot_power: bool
    """mlx5 has detected insufficient power on its slot; benign on its own."""
    out_of_gpu_memory_at: float | None = None
    """Time of the last failed allocation on the node's monotonic clock; None if lines have no times, or there is none."""
    xids_at: Mapping[str, float] = {}
    """The same for each Xid."""

    @property
    def last_at(self) -> float:
        """Time of its last error; 0 if there is none."""
        return max((self.out_of_gpu_memory_at or 0.0, *self.xids_at.values()))

    def followed_by(self, later: KernelLog) -> KernelLog:
        """Both as one: `later` has errors that came after these."""
        at = later.out_of_gpu_memory_at
        return KernelLog(
            out_of_gpu_memory=self.out_of_gpu_memory + later.out_of_gpu_memory,
            xids=(*later.xids, *self.xids)[:KEPT],
            slot_power=self.slot_power or later.slot_power,
            out_of_gpu_memory_at=self.out_of_gpu_memory_at if at is None else at,
            xids_at={**self.xids_at, **later.xids_at},
        )


class ReadKernelLog(Fact[KernelLog]):
    """Reads the kernel's log, if this user may (groups adm, systemd-journal)."""

    argv = (
        "journalctl", "-k", "-b", "--no-pager", "-o", "cat", "-n", "200",
        "-g", "NV_ERR_NO_MEMORY|NVRM: Xid|insufficient power on the PCIe slot",
    )  # fmt: skip
    """A batch of commands has room for as many lines; a burst of failed allocations has more."""
    argv_here = (*argv[:4], "--no-hostname", "-o", "short-monotonic", "-n", str(KEPT), *argv[8:])
    """For a node's own readings, which count failures as they come, with their times: with fewer lines their number would
    stay the same."""
    fine = (0, 1)

    @staticmethod
    def parse(output: str) -> KernelLog:
        """One message per line. With `-n` and `-g` journalctl gives the newest first."""
        failed_allocations = [line for line in output.splitlines() if "NV_ERR_NO_MEMORY" in line]
        xids: dict[str, list[str]] = {}
        for line in output.splitlines():
            for xid in _XID.findall(line):
                xids.setdefault(xid, []).append(line)
        return KernelLog(
            out_of_gpu_memory=len(failed_allocations),
            xids=tuple(int(number) for number in _XID.findall(output)),
            slot_power="insufficient power on the PCIe slot" in output,
            out_of_gpu_memory_at=_last(failed_allocations),
            xids_at={xid: at for xid, lines in xids.items() if (at := _last(lines)) is not None},
        )

    @staticmethod
    def later(output: str, after: float) -> str:
        """The lines that came after this time of the monotonic clock, and those without a time."""
        lines = output.splitlines(keepends=True)
        return "".join(line for line in lines if not (at := _AT.match(line)) or float(at[1]) > after)

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> KernelLog:
        """An empty log counts only if it may be read: `journalctl` hides other users' messages, with a hint."""
        if any(hint in stderr or hint in stdout[:2000] for hint in HIDDEN):
            raise FactError(
                "journalctl: the kernel's log may not be read by this user.",
                means="GPU errors and failed GPU allocations since the last boot are not known.",
                do="sudo usermod -aG systemd-journal $USER, then log in again.",
            )
        if exit_code == 1 and stderr.strip():
            raise failed(cls.argv, exit_code, stderr)
        return super().answer(exit_code, stdout, stderr)


def _last(lines: Iterable[str]) -> float | None:
    """The latest time at the beginning of a line."""
    return max((float(found[1]) for line in lines if (found := _AT.match(line))), default=None)


class ReadPackages(Fact[Mapping[str, str]]):
    """Reads the versions of the packages that known problems depend on."""

    argv = (
        "dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n",
        "mlnx-fw-updater", "nvidia-container-toolkit", "docker-ce", "perftest", "earlyoom",
    )  # fmt: skip
    fine = (0, 1)

    @staticmethod
    def parse(output: str) -> Mapping[str, str]:
        """Packages whose state is `ii`; removed ones are listed with another state."""
        rows = (line.split("|") for line in output.splitlines()[:1000])
        return {
            text(row[1].strip()): text(row[2].strip())
            for row in rows
            if len(row) == 3 and row[0].strip() == "ii"
        }
