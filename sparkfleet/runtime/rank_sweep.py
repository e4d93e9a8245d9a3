"""A sweep of one node: ends runs of ranks that nobody keeps, and removes what they left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import RankId, RankStatus
from sparkfleet.runtime.containers.orphan_containers import OrphanContainers
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL, RUN_LABEL, run_start
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.processes import Process, kill_all, labelled, variables
from sparkfleet.runtime.shared_memory import remove_recorded
from sparkfleet.runtime.supervisor_client import SupervisorConnection, is_restarted, last_word

_POLL_S = 0.02


class SweepLimits(NamedTuple):
    """Times of a sweep, seconds."""

    stray_s: float
    """Grace of processes and containers without a supervisor."""
    stop_s: float
    """Time beyond a rank's grace that its supervisor may need to kill processes."""
    start_s: float
    """Time in which a supervisor that has reported its end is gone."""


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


class RankSweep:
    """One sweep, for `ProcessRuntime.sweep`.

    Args:
        run_dir: directory of the ranks' files.
        fleet: label of the fleet.
        orphans: its containers.
        past: the runs that are to end.
        limits: times that it keeps to.
    """

    def __init__(
        self, run_dir: Path, fleet: str, orphans: OrphanContainers, past: PastRuns, limits: SweepLimits
    ) -> None:
        self._run_dir = run_dir
        self._fleet = fleet
        self._orphans = orphans
        self._past = past
        self._limits = limits

    async def run(self) -> tuple[str, ...]:
        """Supervisors stop their ranks; other processes are killed; files are removed. Returns lines about what is gone."""
        grace_s = self._limits.stray_s
        ended = await asyncio.gather(*(self._end(files) for files in RankFiles.present(self._run_dir)))
        removed = await self._orphans.remove(self._past.has, grace_s=grace_s)
        killed = await kill_all(lambda: list(self._past.processes(self._fleet)), grace_s=grace_s)
        self._remove_traces()
        return (*(f"rank {id_}" for id_ in ended if id_), *removed.gone, *killed.gone)

    async def _end(self, files: RankFiles) -> RankId | None:
        """Stops the rank's run if it is one of these; None if it is not, or its supervisor does not answer."""
        try:
            connection = await SupervisorConnection.open(files)
            if connection is None:
                return None
            try:
                return await self._stop(files, connection)
            finally:
                await connection.close()
        except NodeError:
            return None  # its processes are found by their label

    async def _stop(self, files: RankFiles, connection: SupervisorConnection) -> RankId | None:
        """The same by a connection, which is to the supervisor of one run: the rank may start again meanwhile."""
        answer = await connection.ask("status")
        status = answer.status if answer else None
        if answer is None or status is None or not self._past.has(status.id, status.started_at):
            return None
        try:
            await connection.ask("stop", answer.grace_s + self._limits.stop_s)
            async with asyncio.timeout(self._limits.start_s):
                await _until_gone(files, status)
        except (NodeError, TimeoutError):
            await kill_all(lambda: list(self._past.processes(self._fleet, status.id)), grace_s=0)
        return status.id

    def _remove_traces(self) -> None:
        for files in RankFiles.present(self._run_dir):
            with files.locked() as lock:
                last = last_word(files) if lock is not None else None
                if lock is not None and (last is None or self._past.has(last.id, last.started_at)):
                    remove_recorded(files.shared)
                    files.remove()


async def _until_gone(files: RankFiles, last: RankStatus) -> None:
    """Waits until a supervisor that has reported its end is gone, or the rank runs again."""
    while True:
        with files.locked() as lock:
            if lock is not None:
                return
        if await is_restarted(files, last):
            return
        await asyncio.sleep(_POLL_S)
