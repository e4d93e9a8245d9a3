"""Speed of an engine as its group measures it: several streams on a node on which no other engine starts or is measured."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

from sparkfleet.group.measured_rate import MOST_SPREAD
from sparkfleet.group.probe import StreamMeasurement
from sparkfleet.remote.atomic_write import make_private
from sparkfleet.values import Value

RUNS = 3
"""Streams of one measurement: with three, one that is disturbed does not move the median."""
BUDGET_S = 20.0
"""Seconds after which no further stream begins: at 8 tok/s, the slowest published decode, one takes 8 s."""
TURN_S = 30.0
"""Longest wait for its turn before a group serves unmeasured: longer than the measurement of another group takes, and
shorter than the load of a large model."""
LOOK_S = 0.1


class SpeedMeasurement(Value):
    """Medians over the streams of one measurement."""

    ttft_ms: float
    decode_tps: float
    """Tokens per second of one stream, after its first chunk."""
    spread: float
    """Difference of the fastest and the slowest stream's tok/s, divided by the median; 0 for one stream."""
    runs: int

    def values(self) -> dict[str, float]:
        """The numbers by name, without a rate if its streams give none."""
        rate = {"decode_tps": self.decode_tps} if self.spread <= MOST_SPREAD else {}
        return {
            "ttft_ms": self.ttft_ms,
            **rate,
            "decode_tps_spread": self.spread,
            "measured_runs": float(self.runs),
        }


async def measure_speed(measure: Callable[[], Awaitable[StreamMeasurement]]) -> SpeedMeasurement:
    """Measures one stream up to `RUNS` times, one after the other.

    Args:
        measure: runs one stream. Its errors are passed on.
    """
    began, found = time.monotonic(), [await measure()]
    while len(found) < RUNS and time.monotonic() - began < BUDGET_S:
        found.append(await measure())
    return of_streams(found)


def of_streams(found: Sequence[StreamMeasurement]) -> SpeedMeasurement:
    """The medians of one stream or more."""
    rates = [one.decode_tps for one in found]
    middle = median(rates)
    return SpeedMeasurement(
        ttft_ms=median(one.ttft_ms for one in found),
        decode_tps=middle,
        spread=(max(rates) - min(rates)) / middle,
        runs=len(found),
    )


class MeasuringTurns:
    """Turns of the groups whose rank 0 is on one node: many start at once, and one is measured while none starts.

    The kernel ends a turn with the process that has it. Ranks of a group on further nodes take no turn there.

    Args:
        path: a file of the fleet's run directory on the node.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Keeps others from measuring. It does not wait for one that is being measured: that one will show a spread."""
        with self._open() as fd:
            taking = asyncio.create_task(_until_taken(fd, fcntl.LOCK_SH))
            try:
                yield
            finally:
                taking.cancel()
                await asyncio.wait({taking})

    @asynccontextmanager
    async def alone(self, wait_s: float) -> AsyncIterator[bool]:
        """True if none starts or is measured here as long as this lasts; False if that took longer than `wait_s`."""
        until = time.monotonic() + wait_s
        with self._open() as fd:
            while not (mine := _taken(fd, fcntl.LOCK_EX)) and time.monotonic() < until:
                await asyncio.sleep(LOOK_S)
            yield mine

    @contextmanager
    def _open(self) -> Iterator[int]:
        make_private(self._path.parent)  # it may have been removed from /tmp, with the directory of this user
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)


async def _until_taken(fd: int, kind: int) -> None:
    while not _taken(fd, kind):
        await asyncio.sleep(LOOK_S)


def _taken(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
