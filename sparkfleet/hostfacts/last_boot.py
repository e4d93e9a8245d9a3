"""The end of the boot before this one: a shutdown, or nothing, as after a loss of power; and the kernel's last errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, text
from sparkfleet.hostfacts.kernel_log import HIDDEN
from sparkfleet.values import Value

LINES = 400
"""Lines that are read: a shutdown writes some hundreds, the last of them is journald's own."""
_SHUTDOWN = re.compile(
    r"Journal stopped|systemd-shutdown\[|Reached target \S*(?:reboot|poweroff|halt|kexec)\.target"
)
_NONE = re.compile(
    r"not available: No such boot|no persistent journal|Failed to look up boot|No such boot ID"
)
_AT = re.compile(r"(\d{9,11})(?:\.\d{1,9})? ", re.ASCII)
SIGNS: Mapping[str, re.Pattern[str]] = {
    "a fatal error of PCIe": re.compile(
        r"AER: .{0,120}Uncorrectable.{0,40}Fatal|severity=Uncorrectable \(Fatal\)"
    ),
    "a processor that hung in the kernel": re.compile(
        r"soft lockup|hard LOCKUP|rcu: INFO: rcu_\w{1,20} detected stalls"
    ),
    "a panic of the kernel": re.compile(r"Kernel panic|Internal error: Oops|Unable to handle kernel"),
    "a critical temperature": re.compile(r"critical temperature reached"),
    "failed allocations of the GPU's driver": re.compile(r"NV_ERR_NO_MEMORY"),
    "processes killed for lack of memory": re.compile(r"Out of memory: Killed process"),
    "errors of the GPU (Xid)": re.compile(r"NVRM: Xid"),
}
"""Lines of the kernel that explain an end, by their meaning."""


class LastBoot(Value):
    """The boot before this one."""

    in_order: bool
    """True if it ended by a shutdown or a reboot, or if the log has no earlier boot."""
    ended_at: float | None = None
    """Time of its last line, Unix seconds by the node's clock; None if there is none."""
    signs: tuple[str, ...] = ()
    """Meanings of the kernel's errors among its last lines (`SIGNS`)."""


class ReadLastBoot(Fact[LastBoot]):
    """Reads the last lines of the boot before this one, if this user may (groups adm, systemd-journal)."""

    argv = ("journalctl", "-b", "-1", "--no-pager", "--no-hostname", "-o", "short-unix", "-n", str(LINES))

    @staticmethod
    def parse(output: str) -> LastBoot:
        """One message per line, the newest last. Raises FactError if no line has a time."""
        lines = [line for line in output.splitlines()[-LINES:] if _AT.match(line)]
        if not lines:
            raise FactError("journalctl: the boot before this one has no line with a time.")
        last = _AT.match(lines[-1])
        return LastBoot(
            in_order=any(_SHUTDOWN.search(line) for line in lines),
            ended_at=float(last[1]) if last else None,
            signs=tuple(
                text(meaning)
                for meaning, sign in SIGNS.items()
                if any(sign.search(line[:500]) for line in lines)
            ),
        )

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> LastBoot:
        """A first boot has none before it. Raises FactError also if the log may not be read."""
        if any(hint in stderr for hint in HIDDEN):
            raise FactError(
                "journalctl: the log may not be read by this user.",
                means="Whether the boot before this one ended by a shutdown is not known.",
                do="sudo usermod -aG systemd-journal $USER, then log in again.",
            )
        if exit_code == 1 and (_NONE.search(stderr) or not (stdout.strip() or stderr.strip())):
            return LastBoot(in_order=True)
        return super().answer(exit_code, stdout, stderr)
