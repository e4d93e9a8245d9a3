"""Deletes a lab when the process that it was made for has ended.

`python -m sparkfleet.lab.reaper NAME PID START [PID START]`, START being the process's start time in clock ticks.

The first process makes the lab: if it ends before the lab is complete, the parts of the lab are removed. The
second, if given, is the lab's owner.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable

from sparkfleet.lab.lifecycle import down
from sparkfleet.lab.state import LabProcess, find


def wait_for_any(processes: Iterable[LabProcess]) -> LabProcess:
    """The first of the processes that has ended."""
    watched: dict[int, LabProcess] = {}
    for process in processes:
        try:
            watched[os.pidfd_open(process.pid)] = process
        except ProcessLookupError:
            return process
        # A different start time means that another process has the id now.
        if not process.alive:
            return process
    ended = select.select(list(watched), [], [])[0]
    return watched[ended[0]]


def main(argv: list[str]) -> None:
    """Waits for the maker and the owner, then cleans up."""
    name, numbers = argv[0], argv[1:]
    maker, *owners = (LabProcess(int(pid), at) for pid, at in zip(numbers[::2], numbers[1::2], strict=True))
    if wait_for_any([maker, *owners]) == maker and maker not in owners:
        state = find(name)
        if state is None:
            return
        if state.complete:
            if not owners:
                return
            wait_for_any(owners)
    down(name)


if __name__ == "__main__":
    main(sys.argv[1:])
