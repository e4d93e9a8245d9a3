"""Sends heartbeats for a serving engine and probes it with one token when its counters stop.

Of a custom workload nothing is known that could move: it is asked for its health, where its deployment says how.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from sparkfleet.errors import EngineError
from sparkfleet.group.engine_load import Load
from sparkfleet.group.hang_detector import Liveness
from sparkfleet.group.rank_set import cancel
from sparkfleet.specs.timeouts import Timeouts

HEARTBEAT_S = 2.0
AGAIN_S = 1.0
"""Between a request for a token that was refused and the next: one connection that breaks is no engine that died."""

UNWELL = 3
"""So many questions to a custom workload in a row, over `Timeouts.unwell_s`, that are not answered with 200 mean that it
hangs."""

Ask = Callable[[float], Awaitable[None]]
"""Have the engine generate one token within so many seconds. Raises EngineError."""


async def beat(say: Callable[[], None]) -> NoReturn:
    """Say again and again what is known. It waits for nothing: who says nothing for some seconds is not asked by clients."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        say()


async def follow(
    read: Callable[[], Awaitable[Load]], ask: Ask, patience_s: float, timeouts: Timeouts
) -> NoReturn:
    """Read an engine's load again and again, and ask for a token where nothing of it moves.

    What moves while it is asked is as good as the token, which may have to wait behind a long prefill.

    Args:
        read: its load now.
        ask: for a token.
        patience_s: how long it may owe it, seconds.
        timeouts: after how long without a move it is asked.

    Raises:
        EngineError: nothing moves, and no token comes.
    """
    liveness = Liveness(timeouts)
    asking: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            load = await read()
            suspect = liveness.is_suspect(time.monotonic(), load.running + load.waiting, load.figures)
            if asking is None:
                asking = asyncio.create_task(_insist(ask, patience_s)) if suspect else None
            elif not suspect:
                await cancel(asking)
                asking = None
            elif asking.done():
                asking.result()
                liveness.proved(time.monotonic())
                asking = None
    finally:
        if asking is not None:
            await cancel(asking)


async def stays_well(is_well: Callable[[], Awaitable[bool]], path: str, timeouts: Timeouts) -> NoReturn:
    """Ask a custom workload for its health again and again.

    Args:
        is_well: whether it says so now.
        path: where, for people.
        timeouts: how often it is asked, and for how long it may not answer.

    Raises:
        EngineError: it has not said so for too long.
    """
    failed, since = 0, 0.0
    while True:
        await asyncio.sleep(timeouts.health_every_s)
        asked = time.monotonic()
        if await is_well():
            failed = 0
            continue
        failed, since = failed + 1, since if failed else asked
        long_s = time.monotonic() - since
        if failed >= UNWELL and long_s >= timeouts.unwell_s:
            raise EngineError(
                f"It runs and is not well: {path} did not answer 200 for {long_s:.0f} s, {failed} times in a row.",
                means="Whoever uses it would wait in vain.",
                do="It is started anew; the log shows what it did last.",
            )


async def _insist(ask: Ask, patience_s: float) -> None:
    """Ask, and once more where the answer is another than a token."""
    deadline = time.monotonic() + patience_s
    try:
        await ask(patience_s)
    except EngineError as error:
        left = deadline - time.monotonic() - AGAIN_S
        if left <= 0:
            raise _stuck(error) from error
    else:
        return
    await asyncio.sleep(AGAIN_S)
    try:
        await ask(left)
    except EngineError as error:
        raise _stuck(error) from error


def _stuck(error: EngineError) -> EngineError:
    return EngineError(
        f"It runs and generates nothing: {error.what}",
        means="Whatever it has in hand would be waited for in vain.",
        do="It is started anew; the log shows what it did last.",
    )
