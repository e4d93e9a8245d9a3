"""Engines of real supervisors, as scripts, and the processes of a rank."""

from __future__ import annotations

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.environment import labels
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import labelled, process

IDLE = "tell(os.getpid())\nsignal.pause()"
WITH_ORPHAN = "orphan(stubborn)\nsignal.pause()"


def alive(runtime: ProcessRuntime, rank_id: RankId) -> list[str]:
    """Command lines of all that the rank has running."""
    return [p.command for p in labelled(labels(runtime._fleet, str(rank_id)))]


def supervisor_of(pid: int) -> int:
    """Parent of the engine."""
    found = process(pid)
    assert found
    return found.parent
