"""Names a custom workload that listens on another address than the one at which its requests arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from sparkfleet.errors import EngineError
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.values import Value

LOOK_S = 3.0
"""Seconds between two readings of its sockets."""
CONCLUSIVE_S = 20.0
"""Seconds for which it may have its port on a wrong address: a server may bind a second time. A minute is the limit."""


class Listening(Value):
    """Listening sockets of a workload, and the address that it has to listen on, from the environment of its processes."""

    address: str
    port: int
    sockets: tuple[ListeningSocket, ...]


Sockets = Callable[[], Awaitable[Listening | None]]


def elsewhere(found: Sequence[ListeningSocket], address: str, port: int) -> tuple[str, bool]:
    """The sockets of a workload if it listens, and not at `address:port`.

    Returns:
        Where it listens, e.g. `127.0.0.1:5005`, and True if one of them has the right port; ("", False) otherwise.
    """
    if not found or any(one.port == port and (one.anywhere or one.address == address) for one in found):
        return "", False
    places = sorted({_place(one.address, one.port) for one in found})
    return ", ".join(places), any(one.port == port for one in found)


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
            raise EngineError(
                f"It listens on {places}, and its requests arrive at {expected}.",
                means="No request would reach it, so it was stopped.",
                do="Have its `command` listen on $SPARKFLEET_HOST, which is that address, or on 0.0.0.0.",
            )


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
