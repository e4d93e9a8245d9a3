"""Selection of the runs of ranks that a sweep ends."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL, RUN_LABEL, run_start
from sparkfleet.runtime.processes import Process, labelled, variables


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Runs of the ranks that are not kept, as far as they began before a moment.

    A sweep takes as long as the engines that it ends. What starts meanwhile may have been wanted after `keep` was listed,
    also under the id of a rank that is not in it.
    """

    keep: Container[RankId]
    before: float
    """Seconds of the node's monotonic clock."""

    def has(self, rank: RankId | None, began: float | None) -> bool:
        """True for a run that is to end.

        Args:
            rank: None for an id that cannot be read.
            began: seconds of the node's monotonic clock. None: an earlier release did not note it, so the run is older. One
                after now is of another boot or another clock, and older as well.
        """
        if rank in self.keep:
            return False
        return began is None or not self.before <= began <= time.monotonic()

    def processes(self, fleet: str, of: RankId | None = None) -> Iterator[Process]:
        """Live processes of these runs by their labels, of one rank or of all; supervisors too."""
        for one in labelled({FLEET_LABEL: fleet}):
            # Read once: a process that starts another program has no environment for a moment, and may be one to keep.
            environment = variables(one.pid)
            rank = environment.get(RANK_LABEL)
            if rank is None or (of is not None and rank != str(of)):
                continue
            if self.has(RankId.parse(rank), run_start(environment.get(RUN_LABEL))):
                yield one
