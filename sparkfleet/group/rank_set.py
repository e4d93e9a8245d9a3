"""The ranks of one group, held together: none of them is started, adopted or left running alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sparkfleet.engines.failure_signatures import Diagnosis, Failure, classify, first_cause
from sparkfleet.errors import Cause, EngineError, NodeError, SparkfleetError
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.launch_plan import GroupLaunch
from sparkfleet.group.rank import GIVEN_BACK_S, RankHolder
from sparkfleet.group.report import RankReport
from sparkfleet.runtime.base import RankStatus
from sparkfleet.runtime.ports import free_port
from sparkfleet.units import GIB

log = logging.getLogger(__name__)


ROOM_S = GIVEN_BACK_S
"""How long a start waits for memory that another group gives back."""
ROOM_LOOK_S = 1.0
FLOOR_BYTES = {"cuda": 3 << 30, "cpu": 256 << 20}
"""MemAvailable below which a group is stopped. A Spark does not end a shortage politely: below 2 to 3 GiB the host wedges,
and has to be switched off (guardkit/dgx-spark, flowy0/gb10-experiments). A CPU node swaps or kills, so less will do."""
WEDGES = 2 / 3
"""Below this share of the floor every group of the node goes. Above it only the one that was started last, and the others
wait for what it gives back: as long as a start waits for memory."""
MEMORY_S = 1.0
"""Between two looks at a node's memory: an engine that loads takes gigabytes in that time."""
FOLLOWED_S = 1.0
"""How long a node with a shortage may take to say which group was started last: its memory is not looked at meanwhile."""
TAIL_LINES = 500
TAIL_S = 5.0
"""How long a node may take for a log. Who asks has a failure to tell."""


class Ranks:
    """Starts, adopts, watches and stops all ranks of a group.

    Args:
        order: what to run.
        holders: who holds each rank, in order. Rank 0 is on this node.
        backoff: how often they were started of late.
    """

    def __init__(self, order: GroupLaunch, holders: Sequence[RankHolder], backoff: Backoff) -> None:
        self.holders = tuple(holders)
        self._order = order
        self._backoff = backoff
        self._floor = FLOOR_BYTES[order.candidate.device]
        self._taken = False
        """Whether every rank was started or adopted."""
        self._low: dict[int, int] = {}
        """The least memory that was seen on each rank's node, bytes."""

    def __len__(self) -> int:
        return len(self.holders)

    async def take(self, waiting: Callable[[str], None]) -> tuple[list[RankStatus], bool]:
        """Every rank adopted where all of them run already; otherwise all of them started: no rank survives alone.

        Args:
            waiting: is told what a start waits for.

        Returns:
            How each rank is, and whether they were adopted.

        Raises:
            EngineError: the memory that they need is not there, or somebody else holds a rank.
            NodeError: a node is gone.
        """
        found = await asyncio.gather(*(rank.adopt() for rank in self.holders))
        adopted = [status for status in found if status is not None]
        self._taken = len(adopted) == len(self.holders)
        if self._taken:
            return adopted, True
        await self.stop()
        if pause_s := self._backoff.begin():
            waiting(f"waiting {pause_s:.0f} s: it has just ended")
            await asyncio.sleep(pause_s)
        await self._room(waiting)
        self._low.clear()  # what was missing before is no fault of this start
        rendezvous = free_port(self._order.seats[0].address) if len(self.holders) > 1 else 0
        # All are waited for, also where one fails: a rank that is still being started cannot be stopped.
        started = await asyncio.gather(
            *(rank.start(rendezvous) for rank in self.holders), return_exceptions=True
        )
        for status in started:
            if isinstance(status, BaseException):
                raise status
        self._taken = True
        return [status for status in started if isinstance(status, RankStatus)], False

    async def statuses(self) -> list[RankStatus]:
        """Current status of each rank. Raises NodeError."""
        return await asyncio.gather(*(rank.status() for rank in self.holders))

    async def tails(self) -> list[str]:
        """The last of each rank's log. Raises NodeError."""
        return await asyncio.gather(*(rank.tail() for rank in self.holders))

    def reports(self, statuses: Sequence[RankStatus]) -> tuple[RankReport, ...]:
        """Each rank as it is told to others."""
        return tuple(
            RankReport(rank=index, node=rank.node, pid=status.pid, log_path=rank.log_path)
            for index, (rank, status) in enumerate(zip(self.holders, statuses, strict=True))
        )

    def where(self, rank: int) -> str:
        """Node of a rank, as words that follow others; "" if there is only one."""
        return f" on {self.holders[rank].node} (rank {rank})" if len(self.holders) > 1 else ""

    async def first_exit(self) -> tuple[int, RankStatus]:
        """The first rank that has exited, and how."""
        waiting = [asyncio.create_task(rank.wait()) for rank in self.holders]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            first = next(index for index, task in enumerate(waiting) if task.done())
            return first, waiting[first].result()
        finally:
            await cancel(*waiting)

    async def stop(self) -> None:
        """Stop what is held. A node that cannot be asked stops its rank by itself when the lease runs out."""
        ended = await asyncio.gather(*(rank.stop() for rank in self.holders), return_exceptions=True)
        for rank, error in zip(self.holders, ended, strict=True):
            if error is not None:
                log.warning("rank on %s was not stopped: %r", rank.node, error)

    async def watch_memory(self) -> None:
        """Look at every node's memory once a second, for ever. Each for itself: one that does not answer hides no other.

        Raises:
            EngineError: a node is about to wedge.
        """
        watches = [asyncio.create_task(self._watch_node(index)) for index in range(len(self.holders))]
        try:
            await asyncio.gather(*watches)
        finally:
            await cancel(*watches)

    async def _watch_node(self, index: int) -> None:
        until: float | None = None  # then a shortage is no longer left to a group that was started later
        while True:
            with suppress(NodeError):  # the rank's exit says so, if that is what it is
                memory = await self._available(index)
                wedges = memory < self._floor * WEDGES
                if memory >= self._floor:
                    if until is not None:
                        self._low[index] = memory  # that was another group's: it explains nothing later
                    until = None
                elif until is None and not wedges and await self._is_followed(index):
                    until = time.monotonic() + ROOM_S
                elif until is None or wedges or time.monotonic() >= until:
                    raise _runs_out(memory, self.holders[index].node)
            await asyncio.sleep(MEMORY_S)

    async def _is_followed(self, index: int) -> bool:
        """True if a group that was started later is on the same node; False if the node does not report."""
        try:
            async with asyncio.timeout(FOLLOWED_S):
                return await self.holders[index].is_followed()
        except (NodeError, TimeoutError):
            return False

    async def diagnose(
        self, error: SparkfleetError, exited: RankStatus | None, *, served: bool = False
    ) -> Diagnosis:
        """Diagnoses of failed ranks, from the error's own words, and from every rank's log, memory and exit.

        Args:
            error: what was seen of it.
            exited: how the first rank has ended; None if none has.
            served: whether they were ready.
        """
        if (
            error.because is Cause.MEMORY
        ):  # nothing is asked of a node that is about to wedge: it has to be stopped
            return Diagnosis(cause=error.because, says=error.what, began=self._taken)
        told = [Diagnosis(cause=error.because, says=error.what)] if error.because else []
        logs = await asyncio.gather(*(_lines(rank) for rank in self.holders))
        for index, lines in enumerate(logs):
            failure = Failure(
                engine=self._order.candidate.engine,
                method=self._order.candidate.speculation.method,
                exit_code=exited.exit_code if exited is not None else None,
                log=lines[-TAIL_LINES:],
                served=served,
                memory_low=self._low.get(index),
            )
            told.append(classify(failure))
        found = first_cause(told).model_copy(update={"began": self._taken})
        if found.cause is Cause.UNKNOWN and (exited is None or exited.exit_code is None):
            return found.model_copy(update={"says": error.what})  # no end of its own: what was seen says more
        return found

    async def _room(self, waiting: Callable[[str], None]) -> None:
        """Wait for the memory that the plan counts with: a group that was stopped a moment ago gives it back late."""
        deadline = time.monotonic() + ROOM_S
        while lacking := [
            f"{rank.node} has {memory / GIB:.1f} GiB"
            for rank, memory in zip(self.holders, await self._memory(), strict=True)
            if memory < self._order.needs
        ]:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"Each rank is predicted to need {self._order.needs / GIB:.1f} GiB; {', '.join(lacking)} available.",
                    means="It was not started: a Spark that runs out of memory has to be switched off.",
                    do="`sparkfleet doctor` shows what holds the memory.",
                    because=Cause.MEMORY,
                )
            waiting(f"waiting for memory: {', '.join(lacking)}")
            await asyncio.sleep(ROOM_LOOK_S)

    async def _memory(self) -> list[int]:
        """Memory available on each rank's node, bytes."""
        return await asyncio.gather(*(self._available(index) for index in range(len(self.holders))))

    async def _available(self, index: int) -> int:
        """The same of one; the least that was seen is kept."""
        memory = await self.holders[index].memory()
        self._low[index] = min(memory, self._low.get(index, memory))
        return memory


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel, and return when they have ended: nothing of them speaks after this."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _lines(rank: RankHolder) -> tuple[str, ...]:
    """The last lines of a rank's log; () if its node is gone, or says nothing."""
    try:
        async with asyncio.timeout(TAIL_S):
            return tuple((await rank.tail()).replace("\r", "\n").splitlines())
    except (NodeError, TimeoutError):
        return ()


def _runs_out(memory: int, node: str) -> EngineError:
    return EngineError(
        f"Only {memory / GIB:.1f} GiB of memory are left on {node}: the group is stopped.",
        means="A host without memory does not recover: it has to be switched off.",
        do="A smaller context or concurrency needs less; `sparkfleet plan` shows what would fit.",
        because=Cause.MEMORY,
    )
