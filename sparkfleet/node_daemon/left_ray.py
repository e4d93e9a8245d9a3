"""Ray that another watchdog started and left: systemd ends the old watchdog if `up` starts its unit again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes
from sparkfleet.runtime.files.fleet_paths import FleetPaths

GCS = "gcs_server"
"""Name of the process of Ray that a head has once, and that everything of it ends with."""


class RayProcess(Protocol):
    """Ray on this node, as its watchdog watches it."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        ...


class LeftRay:
    """Ray that is no child of this process. Its exit code is not known: 0 means its end.

    Args:
        process: its process.
    """

    def __init__(self, process: processes.Process) -> None:
        self._process = process

    def poll(self) -> int | None:
        """See `RayProcess`."""
        return None if processes.process(self._process.pid) == self._process else 0

    def age_s(self) -> float:
        """Seconds since its start."""
        ticks = os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._process.started / ticks


@contextlib.contextmanager
def watchdog_lock(paths: FleetPaths) -> Iterator[bool]:
    """Lock of the watchdog of a node, while it is entered; False if another watchdog has it."""
    try:
        file = (paths.root / "watchdog.lock").open("w")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def left_ray(paths: FleetPaths) -> LeftRay | None:
    """Ray of this fleet that runs on this head; None if there is none."""
    found = (one for one in processes.labelled({LABEL: paths.label}) if one.name == GCS)
    return next(map(LeftRay, found), None)


def left_worker(paths: FleetPaths, argv: Sequence[str]) -> LeftRay | None:
    """Ray of this fleet that runs on this node with exactly this command line; None if there is none."""
    words = tuple(map(os.fsencode, argv))
    found = (one for one in processes.labelled({LABEL: paths.label}) if one.words == words)
    return next(map(LeftRay, found), None)
