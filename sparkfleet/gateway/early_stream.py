"""Event stream of a request that waits for a start on demand: it begins with comments, before an engine answers.

Proxies end a connection on which nothing comes for 60 s (nginx, load balancers of clouds), and programs on Node one without
a head for 300 s. A comment is no event: clients skip it. Its price is the status: 200 is sent before anybody knows that the
start succeeds, so what fails later is an error event, which clients do not try again by themselves. The first
`BEGINS_S` are without it, so that what fails at once keeps its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

from sparkfleet.gateway.access.response_owners import RESPONSES
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.asgi import Message, Send
from sparkfleet.gateway.engine.relay import error_event
from sparkfleet.gateway.errors.api_error import ApiError, error_json
from sparkfleet.gateway.http_responses import id_headers
from sparkfleet.gateway.request.usage_option import USAGE_PATHS

STREAM_PATHS = frozenset((*USAGE_PATHS, RESPONSES, "/v1/messages"))
"""Paths whose streams are of events."""
BEGINS_S = 30.0
"""Seconds of waiting after which the stream begins."""
EVERY_S = 15.0
"""Seconds between two comments: a proxy may end what is idle for 30 s."""
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""Anthropic's own sign of life: programs that count events, such as Claude Code, end a stream without any."""
_HEAD = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class EarlyStream:
    """The answer to one request, which may begin while it waits.

    Args:
        begins_s: seconds of waiting after which it begins.
        every_s: seconds between two comments.
    """

    def __init__(
        self, record: RequestRecord, send: Send, begins_s: float = BEGINS_S, every_s: float = EVERY_S
    ) -> None:
        self._record = record
        self._send = send
        self._begins_s = begins_s
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self.has_begun = False
        """True once its head is sent: an error is an event from then on."""
        self._other: list[bytes] | None = None
        """Body of an answer that is no stream; None: it is one."""

    def begin(self, model: str) -> None:
        """Begins to wait for the start of a model."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(model))

    def end(self) -> None:
        """Ends the comments: nothing is sent afterwards but what is passed. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def during(self, delivery: Awaitable[None]) -> None:
        """Waits for the delivery of the request. An error is an event if the stream has begun.

        Raises:
            ApiError: the request is refused, and its stream has not begun.
            ClientGone: its client has left.
        """
        try:
            await delivery
        except ApiError as refusal:
            if not self.has_begun:
                raise
            await self.refuse(refusal)
        finally:
            self.end()

    async def send(self, message: Message) -> None:
        """Passes a part of an engine's answer, as ASGI has it. If the stream has begun, the head is left out, and what is no
        stream becomes an error event."""
        self.end()
        if not self.has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._other = None if _is_stream(message) else []
        elif self._other is None:
            await self._send(message)
        else:
            self._other.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._end_with(b"".join(self._other))

    async def refuse(self, refusal: ApiError) -> None:
        """Ends the stream with an error."""
        self.end()
        self._record.status, self._record.kind = refusal.status, refusal.kind
        await self._end_with(refusal.body(self._record.request.dialect))

    async def _live(self, model: str) -> None:
        await asyncio.sleep(self._begins_s)
        head: Any = [*_HEAD, *id_headers(self._record)]
        await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": head})
        self.has_begun = True  # a slow client may have kept the head back until it was cancelled
        sign = f": waiting for the start of {model}\n\n".encode()
        if self._record.request.dialect == "anthropic":
            sign += _PING
        while True:
            await self._send({"type": "http.response.body", "body": sign, "more_body": True})
            await asyncio.sleep(self._every_s)

    async def _end_with(self, error: bytes) -> None:
        request = self._record.request
        if b'"error"' not in error:
            message = "The engine answered without a stream, although it was asked for one."
            error = error_json(message, 502, code="no_stream", dialect=request.dialect)
        event = error_event(error, request.dialect, request.path, 0)
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def _is_stream(head: Message) -> bool:
    types = [value for name, value in head["headers"] if name.lower() == b"content-type"]
    return head["status"] == HTTPStatus.OK and any(one.startswith(b"text/event-stream") for one in types)
