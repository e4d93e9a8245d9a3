"""Runs the work of a group beside its ranks, and ends it as soon as a rank exits or a node runs out of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp

from sparkfleet.errors import EngineError
from sparkfleet.group.ranks.rank_set import PEERS_S, Ranks
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.report_sender import ReportSender
from sparkfleet.group.tasks import cancel
from sparkfleet.runtime.base import RankStatus

EXIT_S = 5.0 + PEERS_S
"""Seconds from a broken connection to the exit that explains it: what outlives an engine has a second to end, its container
is read and removed first, and the exits of the other ranks are awaited."""

T = TypeVar("T")


class ExitWatch:
    """Watches the ranks and the memory of their nodes while work on their engine runs.

    Args:
        ranks: of the group, which run once `begin` is called.
        reports: of the group; by the last one its engine starts or serves.
        group: its name, with which its log is found.
    """

    def __init__(self, ranks: Ranks, reports: ReportSender, group: str) -> None:
        self._ranks = ranks
        self._reports = reports
        self._group = group
        self._memory: asyncio.Task[None] | None = None
        self.exited: RankStatus | None = None
        """The rank whose exit ended the group; None if none did."""

    def begin(self) -> None:
        """Watches the memory from now on, until `close`."""
        self._memory = asyncio.create_task(self._ranks.memory.watch())

    async def close(self) -> None:
        """Ends the watch over the memory, if it has begun."""
        if self._memory is not None:
            await cancel(self._memory)

    async def until_exit(self, *works: Coroutine[Any, Any, T]) -> T:
        """Result of the first of these tasks; EngineError as soon as a rank exits or a node runs out of memory."""
        assert self._memory is not None
        doing = [asyncio.create_task(work) for work in works]
        exiting = asyncio.create_task(self._ranks.fatal_exit())
        try:
            await asyncio.wait({*doing, exiting, self._memory}, return_when=asyncio.FIRST_COMPLETED)
            for work in doing:
                if work.done() and not await _ended_with_it(work, exiting):
                    return work.result()
            if self._memory.done() and not (self._memory.cancelled() and await _ends_soon(exiting)):
                self._memory.result()
            rank, self.exited = exiting.result()
        finally:
            await cancel(*doing, exiting)
        raise self._error(rank, self.exited)

    def _error(self, rank: int, status: RankStatus) -> EngineError:
        place = self._ranks.place_of(rank)
        what = f"The engine exited while it was starting{place} ({_exit_words(status)})."
        if self._reports.last.phase is GroupPhase.READY:
            what = f"The engine exited{place}: {_first_line(status.reason) or _exit_words(status)}."
        of = f" --rank {rank}" if rank else ""
        return EngineError(
            what, means=status.reason, do=f"Read the whole log: `sparkfleet logs {self._group}{of}`."
        )


async def _ends_soon(exiting: asyncio.Task[Any]) -> bool:
    """True if the exits of a group that is being stopped are known within `PEERS_S`; False if its ranks were released."""
    await asyncio.wait({exiting}, timeout=PEERS_S)
    return exiting.done()


async def _ended_with_it(work: asyncio.Task[Any], exiting: asyncio.Task[Any]) -> bool:
    """True if the connection of a task broke because its engine has ended, which is known with its reason a moment later."""
    if work.cancelled() or not isinstance(getattr(work.exception(), "__cause__", None), aiohttp.ClientError):
        return False
    await asyncio.wait({exiting}, timeout=EXIT_S)
    return exiting.done()


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _exit_words(status: RankStatus) -> str:
    if status.exit_code is None:
        return "no exit code"
    return f"signal {-status.exit_code}" if status.exit_code < 0 else f"exit code {status.exit_code}"
