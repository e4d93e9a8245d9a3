"""Names a custom workload that does not listen at the address at which its requests arrive, or not only there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NoReturn

from sparkfleet.errors import EngineError
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.values import Value

LOOK_S = 3.0
"""Seconds between two readings of its sockets."""
CONCLUSIVE_S = 20.0
"""Seconds for which it may have its port on a wrong address: a server may bind a second time. A minute is the limit."""


class Listening(Value):
    """Listening sockets of a workload, and the address that it has to listen on."""

    address: str
    port: int
    sockets: tuple[ListeningSocket, ...]
    halted: str = ""
    """Reason for which nothing in its container runs, in words; "" if something may run, and for a process."""


Sockets = Callable[[], Awaitable[Listening | None]]


def sockets_of(
    pids: Collection[int], port: int, found: Sequence[ListeningSocket]
) -> tuple[ListeningSocket, ...]:
    """The sockets of these processes; without any, those on `port` of unknown processes: docker runs containers as root."""
    own = tuple(one for one in found if one.pid in pids)
    return own or tuple(one for one in found if one.pid is None and one.port == port)


def elsewhere(found: Sequence[ListeningSocket], address: str, port: int) -> tuple[str, bool]:
    """The sockets of a workload if it listens, and not at `address:port`, or with that port where others reach it, too.

    Returns:
        Where it listens, e.g. `127.0.0.1:5005`, and True if one of them has the right port; ("", False) otherwise.
    """
    same = [one for one in found if one.port == port]
    right = any(one.address == address for one in same) and not _exposed(found, address, port)
    if not found or right:
        return "", False
    places = sorted({_place(one.address, one.port) for one in found})
    return ", ".join(places), bool(same)


async def watch_sockets(read: Sockets, show: Callable[[str], None]) -> NoReturn:
    """Compares the sockets of a starting workload with the expected one, until it is cancelled.

    Args:
        read: reads the listening sockets of all its processes; None while that is not possible.
        show: receives what differs, in words, at each reading; "" if nothing does.

    Raises:
        EngineError: it has had its port on a wrong address for too long.
    """
    since: float | None = None
    while True:
        await asyncio.sleep(LOOK_S)
        if (now := await read()) is None:
            continue
        places, same_port = elsewhere(now.sockets, now.address, now.port)
        expected = _place(now.address, now.port)
        show(f"it listens on {places}, and its requests arrive at {expected}" if places else "")
        if not same_port:
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since >= CONCLUSIVE_S:
            raise _misplaced(places, now)


async def refuse_exposed(read: Sockets) -> None:
    """Looks at the sockets of a workload that is healthy. Raises EngineError if other machines reach its port."""
    now = await read()
    if now is not None and _exposed(now.sockets, now.address, now.port):
        raise _misplaced(elsewhere(now.sockets, now.address, now.port)[0], now)


def _exposed(found: Sequence[ListeningSocket], address: str, port: int) -> bool:
    return any(one.port == port and one.address != address and not one.local for one in found)


def _misplaced(places: str, now: Listening) -> EngineError:
    exposed = _exposed(now.sockets, now.address, now.port)
    every = " (* is every address of the node)" if "*:" in places else ""
    means = "Other machines would reach it there without a key" if exposed else "No request would reach it"
    return EngineError(
        f"It listens on {places}{every}, and its requests arrive at {_place(now.address, now.port)}.",
        means=f"{means}, so it was stopped.",
        do="Have its `command`, or its image by a variable in `env`, listen on $SPARKFLEET_HOST only, which is"
        f" {now.address}.",
    )


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
