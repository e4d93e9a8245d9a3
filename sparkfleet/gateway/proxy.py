"""From an engine to the client: who is asked, who is asked next, and the byte pump.

Another engine is asked only as long as the client has seen nothing. After the first byte a failure is told as
such: an event stream ends with an error event and no `[DONE]`, anything else is cut off, so that nobody takes
a part for the whole.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from sparkfleet.gateway.api_errors import ApiError, Dialect, engine_lost, error_json, no_engine
from sparkfleet.gateway.asgi import Send
from sparkfleet.gateway.endpoints import Picker, Target
from sparkfleet.gateway.in_flight import Choice
from sparkfleet.gateway.routing_table import GroupEntry
from sparkfleet.gateway.upstream import EngineLost, Request, Upstream, UpstreamAnswer
from sparkfleet.gateway.usage import UsageMeter

log = logging.getLogger("sparkfleet.gateway")

ATTEMPTS = 4
"""How many engines are asked for one request."""
DELIVERIES = 2
"""How many engines may fail with the request in hand: one that kills engines must not meet them all."""
PICK_S = 5.0
"""How long a group is waited for, where the model is said to be ready."""


class Attempts:
    """The tries of one request. `close` must be called when its answer is over.

    Args:
        picker: who knows where engines listen.
        upstream: the connections.
        choice: where it may go.
        request: what is sent.
    """

    def __init__(self, picker: Picker, upstream: Upstream, choice: Choice, request: Request) -> None:
        self._picker = picker
        self._upstream = upstream
        self._choice = choice
        self._request = request
        self._app = ""
        """The group that has it in hand, as its load is counted."""
        self._failed: set[str] = set()
        self._deliveries = 0
        self._held: UpstreamAnswer | None = None
        self.group = ""
        """The group that was asked last."""
        self.retries = 0

    async def answer(self) -> UpstreamAnswer:
        """The first answer of an engine that is not failing; where all fail, the last one's own words.

        Raises:
            Refusal: 503, nobody could be asked or all went away.
        """
        try:
            while (engine := await self._next()) is not None:
                answer = await self._ask(engine)
                if answer is not None:
                    return answer
            return self._give_up()
        finally:
            self._hold(None)

    def close(self) -> None:
        """The answer is over, or there was none: no group has the request in hand any more."""
        self._give_to("")

    async def _next(self) -> Target | None:
        if len(self._failed) >= ATTEMPTS or self._deliveries >= DELIVERIES:
            return None
        ranked = self._choice.ranked()
        if not ranked:
            return None
        # Before anything is waited for: of requests that come together each is to count for the next.
        self._give_to(ranked[0].app)
        engine = await self._pick(ranked)
        if engine is None or engine.url in self._failed:
            return None
        self._give_to(engine.app)
        return engine

    async def _pick(self, ranked: list[GroupEntry]) -> Target | None:
        try:
            async with asyncio.timeout(PICK_S):
                engine = await self._picker.pick(self._choice.model, ranked, exclude=frozenset(self._failed))
        except TimeoutError:
            engine = None
        for group in ranked:
            if engine is not None and group.app == engine.app:
                break
            self._choice.loads.fail(group.app)  # it was passed over: nothing listens there
        return engine

    def _give_to(self, app: str) -> None:
        if app == self._app:
            return
        if self._app:
            self._choice.loads.end(self._app)
        if app:
            self._choice.loads.begin(app)
        self._app = app

    async def _ask(self, engine: Target) -> UpstreamAnswer | None:
        self.group = engine.group
        self.retries = len(self._failed)
        try:
            answer = await self._upstream.open(engine, self._request)
        except EngineLost as lost:
            log.warning(
                "%s: lost %s at %s: %s", self._request.id, engine.group or "an engine", engine.url, lost
            )
            self._fail(engine)
            self._deliveries += lost.delivered
            return None
        if not answer.engine_is_failing:
            return answer
        self._fail(engine)
        self._deliveries += 1
        self._hold(answer)
        return None

    def _fail(self, engine: Target) -> None:
        self._failed.add(engine.url)
        self._choice.loads.fail(engine.app)

    def _give_up(self) -> UpstreamAnswer:
        if self._held is None:
            raise self._refusal()
        answer, self._held = self._held, None
        return answer

    def _refusal(self) -> ApiError:
        return engine_lost(self._choice.model) if self._failed else no_engine(self._choice.model)

    def _hold(self, answer: UpstreamAnswer | None) -> None:
        if self._held is not None:
            self._held.close()
        self._held = answer


async def relay(answer: UpstreamAnswer, send: Send, meter: UsageMeter) -> bool:
    """Pass the answer's chunks on as they come. Returns False when the engine went away in the middle."""
    chunk = answer.first
    while chunk:
        meter.feed(chunk)
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        try:
            chunk = await answer.response.content.readany()
        except (aiohttp.ClientError, OSError):
            return False
    return True


def lost_event(dialect: Dialect, meter: UsageMeter) -> bytes:
    """Ends an event stream whose engine went away. Starts a new line if the last event was cut."""
    message = "The engine failed while answering; the answer is incomplete."
    data = error_json(message, 502, code="engine_lost", dialect=dialect)
    name = b"event: error\n" if dialect == "anthropic" else b""
    start = b"" if meter.ends_between_events else b"\n\n"
    return start + name + b"data: " + data + b"\n\n"
