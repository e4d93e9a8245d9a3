"""Ranks that do not answer: named in the group's reports, never ended for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NoReturn

from sparkfleet.errors import NodeError
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.tasks import cancel

ANSWER_S = 4.0
"""Time limit of a rank's status, and the pause before the next: a rank that does not answer is named within 15 s."""


class AnswerWatch:
    """Requests the statuses of a group's ranks for as long as it serves. `holders`: the holder of each rank, in order."""

    def __init__(self, holders: Sequence[RankHolder]) -> None:
        self._holders = holders
        self._quiet: dict[int, float] = {}
        """Ranks that do not answer, with the time of the first request without an answer (monotonic clock)."""

    async def watch(self) -> NoReturn:
        """Requests every rank's status every few seconds. One that does not answer is only named (`quiet`): its engine may
        serve on beside a supervisor or a holder that hangs."""
        watches = [asyncio.create_task(self._watch(index)) for index in range(len(self._holders))]
        try:
            await asyncio.gather(*watches)
        finally:
            await cancel(*watches)
        raise AssertionError("a watch never ends")

    def quiet(self) -> str:
        """Ranks that do not answer, in words; "" if all do."""
        now = time.monotonic()
        return "; ".join(
            f"rank {rank} on {self._holders[rank].node} has not answered for {now - since:.0f} s:"
            " its supervisor or its holder hangs, and its engine goes on"
            for rank, since in sorted(self._quiet.items())
        )

    async def _watch(self, index: int) -> NoReturn:
        while True:
            asked = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._holders[index].status()
            except (NodeError, TimeoutError):
                self._quiet.setdefault(index, asked)
            else:
                self._quiet.pop(index, None)
            await asyncio.sleep(ANSWER_S)
