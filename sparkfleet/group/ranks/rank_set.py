"""The ranks of one group, started, adopted and stopped together: none of them runs alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from sparkfleet.engines.failure_signatures import Diagnosis, Failure, classify, first_cause
from sparkfleet.errors import Cause, EngineError, NodeError, SparkfleetError
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.ranks.answer_watch import AnswerWatch
from sparkfleet.group.ranks.memory_watch import MemoryWatch
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.report import RankReport
from sparkfleet.group.tasks import cancel
from sparkfleet.runtime.base import ADOPTABLE, RankStatus
from sparkfleet.runtime.control_socket import BY_REQUEST, NO_OWNER
from sparkfleet.runtime.exit_codes import blame_order, is_out_of_memory, is_tool_lost
from sparkfleet.runtime.ports import free_port, is_taken
from sparkfleet.units import gib

log = logging.getLogger(__name__)

T = TypeVar("T")

ROOM_LOOK_S = 1.0
PEERS_S = 3.0
"""Time for the exits of other ranks after the first: what outlives an engine has a second to end before that is known."""
RELEASE_S = 3.0
"""Time limit for a node to release its rank."""
TAIL_LINES = 500
TAIL_S = 5.0
"""Time limit for a node to return a log: its reader has a failure to report."""


class Ranks:
    """Starts, adopts and stops all ranks of a group, and finds the cause of its end.

    Args:
        launch: the group's launch.
        holders: the holder of each rank, in order. Rank 0 is on this node.
        backoff: counts their recent starts.
    """

    def __init__(self, launch: GroupLaunch, holders: Sequence[RankHolder], backoff: Backoff) -> None:
        self.holders = tuple(holders)
        self._launch = launch
        self._backoff = backoff
        self.memory = MemoryWatch(self.holders, launch.candidate.device, launch.timeouts.memory_s)
        self.answers = AnswerWatch(self.holders)
        self._taken = False
        """True once every rank was started or adopted."""
        self._without_tool: set[str] = set()
        """Nodes whose container tool did not work at the last start."""
        self.lost = ""
        """Ranks that `adopt` was to find and that had ended, in words; "" for none."""

    def __len__(self) -> int:
        return len(self.holders)

    async def adopt(self) -> list[RankStatus]:
        """Adopts every rank if all of them already run, and returns the status of each; otherwise stops all: [].

        Raises:
            EngineError: another process holds a rank.
            NodeError: a node is gone.
        """
        found = await _gather(rank.adopt() for rank in self.holders)
        adopted = [status for status in found if status is not None and status.phase in ADOPTABLE]
        self._taken = len(adopted) == len(self.holders)
        if self._taken:
            return adopted
        self.lost = self._lost_words(found)
        await self.stop()
        return []

    def _lost_words(self, found: Sequence[RankStatus | None]) -> str:
        """Ranks that ended while no actor of the group held them, in words; "" for none.

        Every other end was seen by the actor that held the rank, and reported by it: if it has stopped one rank, the end of
        those that it did not reach is no news.
        """
        ended = {
            rank: status.reason.partition("\n")[0] if status is not None else "it does not run"
            for rank, status in enumerate(found)
            if status is None or status.phase not in ADOPTABLE
        }
        stopped = any(BY_REQUEST in reason for reason in ended.values())
        if stopped or (len(ended) == len(found) and not any(NO_OWNER in reason for reason in ended.values())):
            return ""
        ranks = "; ".join(
            f"rank {rank} on {self.holders[rank].node}: {reason}" for rank, reason in ended.items()
        )
        others = "; the other ranks were stopped, as none runs alone" if len(ended) < len(found) else ""
        return f"its engine ended while no actor of the group held it, and has to be loaded again: {ranks}{others}"

    async def start(self, waiting: Callable[[str], None]) -> list[RankStatus]:
        """Starts every rank; returns the status of each.

        Args:
            waiting: receives the reason for which the start waits.

        Raises:
            EngineError: their memory is not available.
            NodeError: a node is gone.
        """
        if pause_s := self._backoff.begin():
            waiting(f"{pause_s:.0f} s before the restart: its last run has just ended")
            await asyncio.sleep(pause_s)
        await self._wait_for_memory(waiting)
        self.memory.low.clear()  # a shortage before this start was not caused by it
        rendezvous = free_port(self._launch.placements[0].address) if len(self.holders) > 1 else 0
        self._without_tool.clear()
        naming = asyncio.create_task(self._name_port(waiting))
        try:
            started = await _gather(self._start(rank, rendezvous) for rank in self.holders)
        finally:
            await cancel(naming)
        self._taken = True
        return started

    async def _name_port(self, waiting: Callable[[str], None]) -> None:
        """Names the declared port of a custom workload, which has one rank, on this node, for as long as it is taken."""
        port = self._launch.candidate.port
        if port is None or not await asyncio.to_thread(is_taken, port):
            return
        lists = f"`ss -ltnp 'sport = :{port}'` there lists the program"
        waiting(f"waiting for port {port} of {self.holders[0].node}, which is taken: {lists}")
        while await asyncio.to_thread(is_taken, port):
            await asyncio.sleep(ROOM_LOOK_S)
        waiting("")

    async def _start(self, rank: RankHolder, rendezvous: int) -> RankStatus:
        try:
            return await rank.start(rendezvous)
        except NodeError as error:
            if error.because is Cause.TOOL:
                self._without_tool.add(rank.node)
            raise

    async def statuses(self) -> list[RankStatus]:
        """Current status of each rank. Raises NodeError."""
        return await asyncio.gather(*(rank.status() for rank in self.holders))

    async def tails(self) -> list[str]:
        """The end of each rank's log. Raises NodeError."""
        return await asyncio.gather(*(rank.tail() for rank in self.holders))

    def reports(self, statuses: Sequence[RankStatus]) -> tuple[RankReport, ...]:
        """Node, process and log of each rank, for the report of the group. `statuses`: one per rank, in order."""
        return tuple(
            RankReport(rank=index, node=rank.node, pid=status.pid, log_path=rank.log_path)
            for index, (rank, status) in enumerate(zip(self.holders, statuses, strict=True))
        )

    def place_of(self, rank: int) -> str:
        """Node and number of a rank as the end of a sentence; "" if there is only one."""
        return f" on {self.holders[rank].node} (rank {rank})" if len(self.holders) > 1 else ""

    async def fatal_exit(self) -> tuple[int, RankStatus]:
        """The rank whose exit ended the group, and its status.

        The exit that is noticed first may be the consequence of another one, on a node that is further away or whose engine
        left processes behind: the others have `PEERS_S` to show theirs.
        """
        waiting = [asyncio.create_task(rank.wait()) for rank in self.holders]
        try:
            noticed, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if others:
                await asyncio.wait(others, timeout=PEERS_S)
            found = {rank: task.result() for rank, task in enumerate(waiting) if task.done()}
            return min(
                found.items(),
                key=lambda one: (
                    blame_order(one[1].exit_code, one[1].reason),
                    waiting[one[0]] not in noticed,
                ),
            )
        finally:
            await cancel(*waiting)

    async def stop(self) -> None:
        """Stops the held ranks. On a node that cannot be reached the rank ends when its lease runs out."""
        await self._each((rank.stop() for rank in self.holders), "stopped")

    async def release(self) -> None:
        """Lets the held ranks run on for the next holder. A node that does not answer is not waited for: its rank's holder
        ends with this group's placement group."""
        await self._each((asyncio.wait_for(rank.release(), RELEASE_S) for rank in self.holders), "released")

    async def _each(self, calls: Iterable[Awaitable[None]], done: str) -> None:
        for rank, error in zip(
            self.holders, await asyncio.gather(*calls, return_exceptions=True), strict=True
        ):
            if error is not None:
                log.warning("rank on %s was not %s: %r", rank.node, done, error)

    async def diagnose(
        self, error: SparkfleetError, exited: RankStatus | None, *, served: bool = False
    ) -> Diagnosis:
        """Diagnosis of a failed group, from the error and from every rank's log, memory and exit.

        Args:
            error: the observed failure.
            exited: status of the rank whose exit ended the group; None if none has ended.
            served: True if they were ready.
        """
        # Reads nothing from a node that is about to freeze: its group has to stop.
        if error.because is Cause.MEMORY:
            return Diagnosis(cause=error.because, summary=error.what, began=self._taken)
        if exited is not None and is_tool_lost(exited.reason):
            node, summary = self.holders[exited.id.rank].node, exited.reason.partition("\n")[0]
            return Diagnosis(cause=Cause.TOOL, summary=f"{node}: {summary}", nodes=(node,))
        if error.because is Cause.TOOL:
            nodes = tuple(sorted(self._without_tool))
            return Diagnosis(cause=Cause.TOOL, summary=error.what, began=False, nodes=nodes)
        found = [Diagnosis(cause=error.because, summary=error.what)] if error.because else []
        logs = await asyncio.gather(*(_lines(rank) for rank in self.holders))
        for index, lines in enumerate(logs):
            failure = Failure(
                engine=self._launch.candidate.engine,
                method=self._launch.candidate.speculation.method,
                exit_code=exited.exit_code if exited is not None else None,
                log=lines[-TAIL_LINES:],
                served=served,
                out_of_memory=exited is not None and is_out_of_memory(exited.reason),
                memory_low=self.memory.low.get(index),
            )
            found.append(classify(failure))
        first = first_cause(found).model_copy(update={"began": self._taken})
        if first.cause is Cause.UNKNOWN and (exited is None or exited.exit_code is None):
            # Without an exit code the error is more precise.
            return first.model_copy(update={"summary": error.what})
        return first

    async def _wait_for_memory(self, waiting: Callable[[str], None]) -> None:
        """Waits for the predicted memory: that of a group that has just stopped becomes available late."""
        deadline = time.monotonic() + self._launch.timeouts.memory_s
        while lacking := [
            f"{rank.node} has {gib(memory, exact=True)}"
            for rank, memory in zip(self.holders, await self.memory.available(), strict=True)
            if memory < self._launch.needs
        ]:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"Each rank is predicted to need {gib(self._launch.needs, exact=True)}; {', '.join(lacking)} available.",
                    means="It was not started: a Spark that runs out of memory has to be switched off.",
                    do="Run `sparkfleet doctor`: it lists the processes that hold the memory.",
                    because=Cause.MEMORY,
                )
            waiting(f"waiting for memory: {', '.join(lacking)}")
            await asyncio.sleep(ROOM_LOOK_S)


async def _gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results. Waits for all, even if one fails, and raises the first failure then: a rank that is still being started
    or adopted cannot be stopped."""
    found: list[T] = []
    failures: list[BaseException] = []
    for one in await asyncio.gather(*calls, return_exceptions=True):
        failures.append(one) if isinstance(one, BaseException) else found.append(one)
    if failures:
        raise failures[0]
    return found


async def _lines(rank: RankHolder) -> tuple[str, ...]:
    """The last lines of a rank's log; () if its node is gone or does not answer."""
    try:
        async with asyncio.timeout(TAIL_S):
            return tuple((await rank.tail()).replace("\r", "\n").splitlines())
    except (NodeError, TimeoutError):
        return ()
