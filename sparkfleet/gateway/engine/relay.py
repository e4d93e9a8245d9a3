"""Passes the bytes of an answer to the client as they arrive.

A failure shows: an event stream ends with an error event and no `[DONE]`, any other answer is cut off, so that no client
mistakes a part for the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sparkfleet.gateway.access.response_owners import RESPONSES
from sparkfleet.gateway.asgi import DirectWriter, Send
from sparkfleet.gateway.engine.connection import EngineConnectionLost
from sparkfleet.gateway.engine.failure_event import FailureWatch
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.replay import StreamRecord
from sparkfleet.gateway.engine.upstream import UpstreamAnswer
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.errors.api_error import Dialect, error_json


@dataclass(slots=True)
class AnswerFilters:
    """Filters of an answer's bytes: they record it for a continuation, count, search for loops, and take out usage."""

    meter: UsageMeter
    loops: LoopDetector | None = None
    """Ends an answer that repeats itself; None: it may."""
    hider: UsageHider | None = None
    """Takes out a usage that the client did not ask for; None: there is none."""
    record: StreamRecord | None = None
    """Notes what the client has got, and finds the engine's report that it failed; None: it will not be continued."""
    failures: FailureWatch | None = None
    """Finds that report without a record; None: it is no stream."""

    @property
    def is_changed(self) -> bool:
        """True if the client does not get exactly the engine's bytes."""
        return self.hider is not None or self.record is not None

    @property
    def is_broken(self) -> bool:
        """True if the engine itself has reported that it failed."""
        return (self.record is not None and self.record.failed) or self.has_report

    @property
    def has_report(self) -> bool:
        """True if the client has the engine's own report of that."""
        return self.failures is not None and self.failures.failed

    @property
    def is_over(self) -> bool:
        """True if nothing more of this engine is passed on."""
        return self.is_broken or (self.loops is not None and self.loops.found)

    def take(self, chunk: bytes) -> bytes:
        """The bytes for the client after the next ones of the engine."""
        if self.record is not None and not (chunk := self.record.feed(chunk)):
            return b""
        self.meter.feed(chunk)
        if self.loops is not None:
            self.loops.feed(chunk)
        if self.failures is not None:
            chunk = self.failures.feed(chunk)
        return chunk if self.hider is None else self.hider.feed(chunk)

    def rest(self, *, whole: bool) -> bytes:
        """Bytes that were held back, at the end of the stream. `whole`: false if it broke."""
        left = self.record.rest() if self.record is not None and whole else b""
        if self.failures is not None:
            left += self.failures.rest()
        return left if self.hider is None else self.hider.feed(left) + self.hider.rest()


async def relay(
    answer: UpstreamAnswer, send: Send, direct: DirectWriter | None, filters: AnswerFilters
) -> bool:
    """Passes the answer's chunks on as they arrive. False if it ended in the middle: the engine was lost, or a loop found.

    Args:
        answer: the engine's answer; its head is sent already.
        send: the client's, of ASGI.
        direct: writes to the client's connection without a task in between; None if the server has none.
        filters: count and change the bytes.
    """
    try:
        if direct is not None:
            await _pump(answer, direct, filters)
            return not filters.is_broken
        chunk = answer.first
        while chunk:
            if passed := filters.take(chunk):
                await send({"type": "http.response.body", "body": passed, "more_body": True})
            if filters.is_over:
                return False
            chunk = await answer.readany()
    except EngineConnectionLost:
        return False
    return True


async def _pump(answer: UpstreamAnswer, direct: DirectWriter, filters: AnswerFilters) -> None:
    def sink(chunk: bytes) -> bool:
        passed = filters.take(chunk)
        if filters.is_over:
            answer.stop()  # the pump ends with a lost connection
        return direct.write(passed) if passed else True

    def counting(chunk: bytes) -> bool:
        feed(chunk)
        return write(chunk)

    def watching(chunk: bytes) -> bool:
        feed(chunk)
        passed = watch(chunk)
        if passed is not chunk and filters.has_report:
            answer.stop()
        return write(passed) if passed else True

    # Most streams are only counted, each part of them here: it costs no more than that (benchmarks/chunk.py).
    if not filters.is_changed and filters.loops is None:
        feed, write, sink = filters.meter.feed, direct.write, counting
        if filters.failures is not None:
            watch, sink = filters.failures.feed, watching
    if answer.first and not sink(answer.first):
        await direct.drained()
    await answer.pump(sink, direct.drained)


def lost_event(dialect: Dialect, meter: UsageMeter, path: str) -> bytes:
    """Ends an event stream whose engine was lost. Starts a new line if the last event was cut."""
    message = "The engine failed while answering; the answer is incomplete."
    return _last_event(message, "engine_lost", dialect, meter, path)


def loop_event(dialect: Dialect, meter: UsageMeter, tokens: int, path: str) -> bytes:
    """Ends an event stream that repeated itself."""
    message = (
        f"The answer repeated the same text for about {tokens} tokens and was ended (loop_tokens of this deployment)."
        " Another temperature, or a repetition penalty in the request, may prevent it."
    )
    return _last_event(message, "loop", dialect, meter, path)


def _last_event(message: str, code: str, dialect: Dialect, meter: UsageMeter, path: str) -> bytes:
    start = b"" if meter.ends_between_events else b"\n\n"
    data = error_json(message, 502, code=code, dialect=dialect)
    return start + error_event(data, dialect, path, meter.events)


def error_event(data: bytes, dialect: Dialect, path: str, number: int) -> bytes:
    """The event of an error object in the form of `dialect`. `number`: events before it."""
    of_response = path == RESPONSES and dialect == "openai"
    if of_response:
        data = _typed(json.loads(data)["error"], number)
    name = b"event: error\n" if of_response or dialect == "anthropic" else b""
    return name + b"data: " + data + b"\n\n"


def _typed(error: dict[str, Any], number: int) -> bytes:
    """The error event of the Responses API, whose clients read events by `type`.

    Its documented fields are beside `type` (openai: types/responses/response_error_event.py), but the official client raises
    only if there is an `error` (openai: _streaming.py), and passes the event on as one of many otherwise.
    """
    fields = {name: error[name] for name in ("code", "message", "param")}
    return json.dumps({"type": "error", "sequence_number": number, **fields, "error": error}).encode()
