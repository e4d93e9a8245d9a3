"""Sends heartbeats for a serving engine and probes it with one token when its counters stop.

A custom workload has no known counters: its health path is checked if the deployment declares one, and else that the
process at its port runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from sparkfleet.errors import EngineError
from sparkfleet.group.engine_load import Load
from sparkfleet.group.exposed_sockets import Sockets
from sparkfleet.group.hang_detector import HangDetector
from sparkfleet.group.report import HEARTBEAT_S
from sparkfleet.group.tasks import cancel
from sparkfleet.runtime.processes import is_stopped
from sparkfleet.specs.timeouts import Timeouts

AGAIN_S = 1.0
"""Seconds between a failed probe and the next: one broken connection does not prove that the engine is dead."""

UNWELL = 3
"""Failed health checks of a custom workload in a row, over `Timeouts.unwell_s`, after which it counts as hung."""

LONGEST_CHECK_S = 6.0
"""Seconds that a check takes at most: its own limit, and some for a busy machine."""

ALIVE_S = 3.0
"""Time limit for an engine to prove that all of its ranks compute: a node that lost its power takes longer to boot, and a
rung without it is not taken so soon."""
ALIVE_LOOK_S = 0.2

TokenProbe = Callable[[float], Coroutine[Any, Any, None]]
"""Requests one token within this many seconds. Raises EngineError."""


async def send_heartbeats(report: Callable[[], None]) -> NoReturn:
    """Reports every `HEARTBEAT_S`, without waiting for the engine: gateways avoid a group whose reports stop."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        report()


async def watch_progress(
    read: Callable[[], Awaitable[Load]], ask: TokenProbe, patience_s: float, detector: HangDetector
) -> NoReturn:
    """Reads an engine's load every `HEARTBEAT_S`, and probes it with one token when its counters stop.

    A counter that moves during the probe is as good as the token, which may have to wait behind a long prefill.

    Args:
        read: reads the current load.
        ask: requests one token.
        patience_s: time limit of the probe, seconds.
        detector: judges the readings.

    Raises:
        EngineError: no counter moves, and no token arrives.
    """
    asking: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            load = await read()
            suspect = detector.is_suspect(time.monotonic(), load.running + load.waiting, load.figures)
            if asking is None:
                asking = asyncio.create_task(_insist(ask, patience_s)) if suspect else None
            elif not suspect:
                await cancel(asking)
                asking = None
            elif asking.done():
                asking.result()
                detector.note_token(time.monotonic())
                asking = None
    finally:
        if asking is not None:
            await cancel(asking)


async def generates(read: Callable[[], Awaitable[Load]], ask: TokenProbe) -> bool:
    """True if an engine generates a token within `ALIVE_S`: the requested one or, while all its slots are taken, another's.

    Every rank takes part in each token. Other counters do not count: blocks are allocated before a rank computes.

    Args:
        read: reads the current load.
        ask: requests one token.
    """
    asking = asyncio.create_task(ask(ALIVE_S))
    try:
        async with asyncio.timeout(ALIVE_S):
            before = (await read()).figures
            while not asking.done():
                await asyncio.wait({asking}, timeout=ALIVE_LOOK_S)
                now = (await read()).figures
                if before and now and now[0] > before[0]:
                    return True
            return asking.exception() is None
    except TimeoutError:
        return False
    finally:
        await cancel(asking)


async def watch_health(
    check: Callable[[], Awaitable[str]], timeouts: Timeouts, show: Callable[[str], None]
) -> NoReturn:
    """Checks a custom workload's health again and again.

    Args:
        check: returns what is wrong, in words; "" if nothing is.
        timeouts: interval of the checks, and time for which they may fail.
        show: receives the present failure in words; "" once a check succeeds.

    Raises:
        EngineError: the checks have failed for too long.
    """
    failed, long_s, asked = 0, 0.0, time.monotonic()
    while True:
        await asyncio.sleep(timeouts.health_every_s)
        before, asked = asked, time.monotonic()
        if not (wrong := await check()):
            failed = 0
            show("")
            continue
        # Of a pause of this process only one interval counts: nobody checked meanwhile.
        waited_s = min(asked - before, timeouts.health_every_s + LONGEST_CHECK_S)
        failed, long_s = failed + 1, long_s + waited_s if failed else 0.0
        times = "" if failed == 1 else f", {failed} times in a row"
        show(f"{wrong}{times}: it is restarted if that lasts for {timeouts.unwell_s:.0f} s")
        if failed >= UNWELL and long_s >= timeouts.unwell_s:
            raise EngineError(
                f"It runs but is not healthy: {wrong} for {long_s:.0f} s, {failed} times in a row.",
                means="Its requests would wait for ever.",
                do="It is restarted; `sparkfleet logs` shows its last output.",
            )


async def health_failure(is_well: Callable[[], Awaitable[bool]], path: str) -> str:
    """Words for a health path that does not answer 200; "" if it does."""
    return "" if await is_well() else f"{path} did not return 200"


async def stopped_process(read: Sockets) -> str:
    """Words for a workload at whose port only stopped processes listen (SIGSTOP, a debugger), or in whose container nothing
    runs; "" for any other.

    The kernel accepts connections for a stopped process, so that clients wait, and nothing else shows it. One that is only
    busy is never stopped.

    Args:
        read: reads the listening sockets of all its processes; None while that is not possible.
    """
    if (now := await read()) is None:
        return ""
    pids = sorted({pid for one in now.sockets if one.port == now.port for pid in one.pids})
    if not pids or not all(map(is_stopped, pids)):
        return now.halted
    return f"process {pids[0]}, which listens on port {now.port}, was stopped by a signal"


async def _insist(ask: TokenProbe, patience_s: float) -> None:
    """Probes with one token, and a second time if the answer has none."""
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
        f"It runs but generates no tokens: {error.what}",
        means="It hangs: its requests would wait for ever.",
        do="It is restarted; `sparkfleet logs` shows its last output.",
    )
