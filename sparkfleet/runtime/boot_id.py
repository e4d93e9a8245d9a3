"""Boot id of a node: if it has changed, no process of an earlier boot runs."""

from __future__ import annotations

import os
from pathlib import Path

from sparkfleet.runtime.processes import process

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UPTIME = Path("/proc/uptime")


def this_boot() -> str:
    """The kernel's id of this boot, and the start of the first process.

    A container's first process, which ends with everything in it, starts later than the machine's under the same kernel.
    """
    first = process(1)
    return f"{BOOT_ID.read_text().strip()}/{first.started if first else 0}"


def up_s() -> float:
    """Seconds since this boot."""
    first = process(1)
    since_kernel = float(UPTIME.read_text().split()[0])
    return since_kernel - (first.started / os.sysconf("SC_CLK_TCK") if first else 0.0)
