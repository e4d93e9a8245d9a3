"""Sends a request to engines until one begins to answer: a retry is possible only before the client has seen a byte."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.engine.endpoints import EngineEndpoint, Picker
from sparkfleet.gateway.engine.engine_error import read_error, unfitness
from sparkfleet.gateway.engine.engine_pool import EngineLost
from sparkfleet.gateway.engine.replay import with_token_ids
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, UpstreamAnswer
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import engine_lost, no_engine, none_ready_so_large
from sparkfleet.gateway.policy.absences import AUDIO
from sparkfleet.gateway.routing_table import GroupEntry

log = logging.getLogger("sparkfleet.gateway")

ATTEMPTS = 3
"""Times that one request is sent, at most: two retries, those to the same engine and for the rest of a stream included."""
DELIVERIES = 2
"""Times that it may be lost with an engine that had it: one that kills engines must not reach them all."""


class Attempts:
    """The tries of one request.

    Args:
        slot: its place on the group that it was admitted to.
        on_answer: called when an engine has begun to answer, so that the request's body is not needed again.
        token_ids: ask for ids of tokens, if the engine returns them.
        lost: the tries before, for the rest of a stream whose engine was lost: they count, one more engine may be lost
            with it, and its group is chosen now, not when the slot was granted.
    """

    def __init__(
        self,
        picker: Picker,
        upstream: Upstream,
        candidates: CandidateGroups,
        slot: Slot,
        *,
        request: EngineRequest,
        on_answer: Callable[[], None] = lambda: None,
        token_ids: bool = False,
        lost: Attempts | None = None,
    ) -> None:
        self._picker = picker
        self._upstream = upstream
        self._candidates = candidates
        self._request: EngineRequest | None = request
        self._on_answer = on_answer
        self._slot = slot
        self._token_ids = token_ids
        self._admitted: list[GroupEntry] | None = (
            None if lost is not None else [one.group for one in slot.found]
        )
        """The groups by the forecast that it was admitted with, until the first try."""
        self._failed: set[str] = set()
        self._unfit: set[str] = set()
        """Groups whose engine lacks something that the request needs."""
        self._context = 0
        """The largest context that was too short."""
        self._sent: int = lost._sent if lost is not None else 0
        self._deliveries = DELIVERIES - 1 if lost is not None else 0
        self._held: UpstreamAnswer | None = None
        self.group = ""
        """The group of the last try."""
        self.is_external = False
        """True if that is an endpoint outside the fleet."""
        self.app = self.weights = ""
        """Its application, and the mark of its weights."""
        self.retries = 0

    async def answer(self) -> UpstreamAnswer:
        """The first answer of a working engine; if all fail, or lack something that it needs, the last one's own error.

        Raises:
            ApiError: 503, no engine was found, all were lost, or one with a sufficient context is not ready.
        """
        try:
            while (engine := await self._next()) is not None:
                answer = await self._ask(engine)
                if answer is not None:
                    return answer
            return self._give_up()
        finally:
            self._hold(None)
            self._request = None
            self._on_answer()

    async def _next(self) -> EngineEndpoint | None:
        if self._sent >= ATTEMPTS or self._deliveries >= DELIVERIES:
            return None
        ranked, self._admitted = self._admitted or self._candidates.ranked(), None
        ranked = [one for one in ranked if self._may_fit(one)] if self._unfit else ranked
        if not ranked:
            return None
        # Before the first wait: of simultaneous requests each must count for the next.
        self._slot.move(ranked[0])
        engine = await self._pick(ranked)
        if engine is None or engine.url in self._failed:
            return None
        group = next(group for group in ranked if group.app == engine.app)
        self.app, self.weights = group.app, group.weights
        self._slot.move(group)
        return engine

    async def _pick(self, ranked: list[GroupEntry]) -> EngineEndpoint | None:
        engine = await self._picker.pick(self._candidates.model, ranked, exclude=frozenset(self._failed))
        for group in ranked:
            if engine is not None and group.app == engine.app:
                break
            self._candidates.observed.fail(group.app)  # it was skipped: it has no engine
        return engine

    async def _ask(self, engine: EngineEndpoint) -> UpstreamAnswer | None:
        self.group = engine.group
        self.is_external = engine.external is not None
        self.retries = len(self._failed)
        request = self._request
        assert request is not None
        if self._token_ids and self.weights:
            request = replace(request, body=with_token_ids(request.body), model_span=None)
        most = min(ATTEMPTS - self._sent, DELIVERIES - self._deliveries)
        try:
            answer = await self._upstream.open(engine, request, most=most)
        except EngineLost as lost:
            log.warning("%s: lost %s at %s: %s", request.id, engine.group or "an engine", engine.url, lost)
            self._fail(engine, str(lost))
            self._sent += lost.deliveries or 1
            self._deliveries += lost.deliveries
            return None
        if answer.is_error and not answer.engine_is_failing and await self._is_unfit(engine, answer):
            return None
        self._sent += answer.deliveries
        if not answer.engine_is_failing:
            self._judge(engine, answer)
            return answer
        self._fail(engine, f"it answered {answer.status}")
        self._deliveries += answer.deliveries
        self._hold(answer)
        return None

    async def _is_unfit(self, engine: EngineEndpoint, answer: UpstreamAnswer) -> bool:
        """True if another group may serve what this one's engine refused: it was not the request's fault.

        Such a try does not count: the engine did nothing but refuse.
        """
        self._hold(answer)  # it is closed if the client leaves meanwhile
        answer.error = await read_error(answer)
        name = self._candidates.model.name
        why = unfitness(answer.error, answer.status, has_audio=self._candidates.needs.audio, model=name)
        if why is None:
            self._held = None
            return False
        answer.unfit = why
        if why == "context":
            known = (*self._candidates.groups, *self._candidates.external)
            own = (one.context or 0 for one in known if one.app == engine.app)
            self._context = max([self._context, *own])
        elif why == "model":
            self._candidates.observed.cannot_use(
                engine.app,
                engine.group,
                f"it answered 404, as it does not know the model {name}",
                f"Its command has to serve the model as {name}, the name of the deployment.",
            )
        else:
            for what in self._candidates.engine_needs:
                if (what == AUDIO) == (why == "audio"):
                    self._candidates.observed.absences.note(engine.app, what)
        self._unfit.add(engine.app)
        return True

    def _judge(self, engine: EngineEndpoint, answer: UpstreamAnswer) -> None:
        """Counts a page for people on a path of the API; any other answer without an error ends the count."""
        if answer.status >= 400:
            return
        path = next((what for what in self._candidates.engine_needs if what != AUDIO), "")
        if not (answer.is_page and path):
            self._candidates.observed.unusable.end(engine.app)
            return
        self._candidates.observed.cannot_use(
            engine.app,
            engine.group,
            f"it answered {answer.status} with a web page to {path}",
            "Its command has to serve the API at that path of its port.",
        )

    def _may_fit(self, group: GroupEntry) -> bool:
        return group.app not in self._unfit and (group.context is None or group.context > self._context)

    def _fail(self, engine: EngineEndpoint, why: str) -> None:
        self._failed.add(engine.url)
        # Endpoints outside the fleet have a list of their own (`Upstream.trouble`).
        self._candidates.observed.fail(engine.app, engine.group, why if engine.external is None else "")

    def _give_up(self) -> UpstreamAnswer:
        if self._held is None:
            raise self._refusal()
        if (
            self._held.unfit == "context"
            and (larger := self._candidates.larger_later(self._context)) is not None
        ):
            raise none_ready_so_large(self._candidates.model, larger, time.time())
        answer, self._held = self._held, None
        return answer

    def _refusal(self) -> ApiError:
        made = engine_lost if self._failed else no_engine
        return made(self._candidates.model, time.time())

    def _hold(self, answer: UpstreamAnswer | None) -> None:
        if self._held is not None:
            self._held.close()
        self._held = answer
