"""Helpers for ASGI messages, and detection of clients that hang up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, as ASGI delivers them."""
Fields = Mapping[bytes, bytes]
"""First value of each header, by its name."""


DIRECT = "sparkfleet.direct"
"""Extension of a scope: the `DirectWriter` of its answer."""

LINGER_S = 5.0
LINGER_BYTES = 256 << 20


class ClientGone(Exception):
    """The client hung up."""


class DirectWriter(Protocol):
    """Writes parts of an answer's body to the client's connection. `send` sends its head and its end."""

    def arrived(self) -> bytes | None:
        """The body of the request if all of it has arrived and none was received; None: `receive` it."""
        ...

    def write(self, chunk: bytes) -> bool:
        """Writes a part. False if the client is slow: wait for `drained` before the next."""
        ...

    async def drained(self) -> None:
        """Waits until the client takes more."""
        ...

    def watch(self, gone: Callable[[], None]) -> bool:
        """Calls `gone` when the client hangs up. False if it has already."""
        ...

    def unwatch(self, gone: Callable[[], None]) -> None:
        """Ends that."""
        ...


def fields_of(headers: Headers) -> dict[bytes, bytes]:
    """First value of each header."""
    return dict(reversed(headers))


def direct_writer(scope: Scope) -> DirectWriter | None:
    """The writer of this request's answer; None if its server has none."""
    found: DirectWriter | None = (scope.get("extensions") or {}).get(DIRECT)
    return found


class WhileConnected:
    """Runs the body of an `async with` for as long as the client stays, in the manner of `asyncio.timeout`.

    The whole request must have been received before. When the client hangs up, the body is cancelled at once (so the
    engine's connection closes and its generation stops), and `ClientGone` is raised.

    Args:
        direct: its connection, which calls back; None: a task waits for the end, which costs more.
    """

    def __init__(self, receive: Receive, direct: DirectWriter | None = None) -> None:
        self._receive = receive
        self._direct = direct
        self._watch: asyncio.Task[None] | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        if self._direct is None:
            self._watch = asyncio.create_task(self._until_gone())
        elif not self._direct.watch(self._cancel):
            self._cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        elif self._direct is not None:
            self._direct.unwatch(self._cancel)
        if not self._gone:
            return
        # The only cancellation came from here: raise the reason instead.
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGone from None

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()

    def _cancel(self) -> None:
        self._gone = True
        self._task.cancel()


async def respond(send: Send, status: int, headers: Headers, body: bytes, *, head: bool = False) -> None:
    """Sends a whole answer. `head`: the request was HEAD, so the body is not sent."""
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    fields = [*headers, *length]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if head else body})


async def respond_early(receive: Receive, send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a whole answer to a refused request while the client is still sending its body.

    Most clients send everything before they read. Closing at once would reset the connection and lose the answer, so the
    rest of the body is discarded for a while (`LINGER_S`, `LINGER_BYTES`) before the connection closes.
    """
    fields = [*headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await _discard(receive, LINGER_BYTES)
    await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive, most: int) -> None:
    while most > 0:
        message = await receive()
        most -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
