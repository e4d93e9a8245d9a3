"""Queues in front of the groups: a request goes to an engine when the group that finishes it first has a free slot.

Requests for a model that starts on demand wait here for its start, too.

Waiting here instead of in an engine has three reasons: the group is chosen late, when it is known which one is free;
interactive requests pass batch ones; and the keys take turns. A queue has a limit and a deadline, both with an honest
`Retry-After`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import not_ready, queue_full, waited_too_long
from sparkfleet.gateway.observed_groups import RequestsAhead
from sparkfleet.gateway.policy.forecast import GroupForecast
from sparkfleet.gateway.routing_table import ModelEntry

WAITING = 1024
"""Requests that wait for one model, at most: an evaluation with a thousand requests at once is served."""
LONGEST_S = 300.0
"""Seconds that a request waits at most: half of what OpenAI's and Anthropic's clients wait for an answer."""
START_S = 570.0
"""Seconds that a request waits for a start on demand, at most: OpenAI's and Anthropic's clients wait 600 for an answer, and
try a 503 again by themselves."""
STREAM_START_S = 1800.0
"""The same for one whose stream shows meanwhile that it lives: its client goes on waiting, and would not try again."""
_LOOKED_AT = 64
"""Waiting requests that may choose between a free group and a full one, and others, whose forecasts are made when a slot is
free."""
_LONGEST_RETRY_S = 600
_LATER_S = 0.001
"""Seconds after the end of a pause, so that it is over by any clock."""


class AwaitedStart(Protocol):
    """The wait of one request for a start on demand, as the request itself notes it."""

    @property
    def is_stream(self) -> bool:
        """True if its client sees meanwhile that it lives."""
        ...

    def begin(self, model: ModelEntry) -> None:
        """Begins the wait, if it has not begun. Raises ApiError if too many wait."""
        ...

    def end(self) -> None:
        """Ends it. May be called twice."""
        ...


@dataclass(eq=False)
class _Waiter:
    choose: Callable[[], CandidateGroups]
    candidates: CandidateGroups
    start: AwaitedStart | None
    number: int
    granted: asyncio.Future[Slot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class QueueOutlook(NamedTuple):
    """The queue of a model for a request that would come now."""

    waiting: int
    wait_s: int
    """Seconds until it would be served, by the forecasts of the groups; 0 if nothing waits."""


class ModelQueues:
    """The queue of each model.

    Args:
        waiting: requests that wait for one model, at most.
        longest_s: seconds that each waits, at most.
        start_s: the same for those that wait for a start on demand.
        stream_start_s: the same for those of them whose stream shows that it lives.
    """

    def __init__(
        self,
        waiting: int = WAITING,
        longest_s: float = LONGEST_S,
        start_s: float = START_S,
        stream_start_s: float = STREAM_START_S,
    ) -> None:
        self._most = waiting
        self._longest_s = longest_s
        self._start_s = start_s
        self._stream_start_s = stream_start_s
        self.on_start_awaited: Callable[[], None] = lambda: None
        """Called when the first request begins to wait for the start of a model."""
        self._waiting: dict[str, list[_Waiter]] = {}
        self._running: defaultdict[tuple[str, str], int] = defaultdict(int)  # a Counter is slower to end
        """Requests with a slot, by model and key."""
        self._number = 0

    def waiting(self, model: str) -> int:
        """Requests that wait for a model."""
        return len(self._waiting.get(model, ()))

    def outlook(self, model: str) -> QueueOutlook:
        """The queue of a model for a request that would come now."""
        waiters = self._waiting.get(model)
        if not waiters:
            return QueueOutlook(0, 0)
        return QueueOutlook(len(waiters), _retry_after(waiters[-1].candidates.forecasts(), len(waiters)))

    async def enter(
        self,
        choose: Callable[[], CandidateGroups],
        first: CandidateGroups | None = None,
        start: AwaitedStart | None = None,
    ) -> QueuedSlot:
        """Waits for a slot on the group that finishes the request first.

        Args:
            choose: returns the candidates by the present table; called again if that changes.
            first: what it has just returned; None: it is called.
            start: its wait for a start, if there is one; None: it is not noted anywhere.

        Raises:
            ApiError: 503, the queue is full or the deadline passed; or what `choose` raises.
        """
        candidates = first or choose()
        model = candidates.model.name
        if model not in self._waiting and not candidates.wait_for_start:
            found = candidates.forecasts()
            if _has_room(found):
                return self._grant(candidates, found)
        waiters = self._waiting.get(model, [])
        if len(waiters) >= self._most:
            raise queue_full(
                candidates.model, len(waiters), _retry_after(candidates.forecasts(), len(waiters))
            )
        if start is not None and candidates.wait_for_start:
            start.begin(candidates.model)
        self._waiting[model] = waiters
        self._number += 1
        waiter = _Waiter(choose, candidates, start, self._number)
        waiters.append(waiter)
        if candidates.wait_for_start and len(waiters) == 1:
            self.on_start_awaited()
        self._serve(model)
        return await self._wait(model, waiter)

    def pump(self) -> None:
        """Grants the slots that are free now."""
        for model in tuple(self._waiting):
            self._serve(model)

    def pump_in(self, seconds: float) -> None:
        """Grants the slots that are free then: at the end of a pause of a group that failed no request ends."""
        asyncio.get_running_loop().call_later(seconds + _LATER_S, self.pump)

    def refresh(self) -> None:
        """Chooses again for all that wait: the table has changed."""
        for waiters in tuple(self._waiting.values()):
            for waiter in tuple(waiters):
                try:
                    waiter.candidates = waiter.choose()
                    if waiter.start is not None and waiter.candidates.wait_for_start:
                        waiter.start.begin(waiter.candidates.model)  # it was unloaded
                except ApiError as error:
                    _refuse(waiter, error)
        self.pump()

    def refuse_starts(self, error: ApiError) -> None:
        """Refuses what waits for a start."""
        for waiter in [one for waiters in self._waiting.values() for one in waiters]:
            if waiter.candidates.wait_for_start:
                _refuse(waiter, error)

    def release(self, slot: QueuedSlot) -> None:
        """Counts the end of a request with a slot."""
        self._running[slot.owner] -= 1
        if not self._running[slot.owner]:
            del self._running[slot.owner]

    async def _wait(self, model: str, waiter: _Waiter) -> QueuedSlot:
        limit_s = self._limit_s(waiter)
        try:
            async with asyncio.timeout(limit_s):
                granted = await asyncio.shield(waiter.granted)
                assert isinstance(granted, QueuedSlot)
                return granted
        except TimeoutError:
            _give_back(waiter)
            if waiter.candidates.wait_for_start:
                raise not_ready(waiter.candidates.model, time.time()) from None
            retry = _retry_after(waiter.candidates.forecasts(), self.waiting(model))
            raise waited_too_long(waiter.candidates.model, limit_s, retry) from None
        except asyncio.CancelledError:
            _give_back(waiter)
            raise
        finally:
            if waiter.start is not None:
                waiter.start.end()
            self._remove(model, waiter)

    def _limit_s(self, waiter: _Waiter) -> float:
        if not waiter.candidates.wait_for_start:
            return self._longest_s
        is_stream = waiter.start is not None and waiter.start.is_stream
        return self._stream_start_s if is_stream else self._start_s

    def _serve(self, model: str) -> None:
        while self._grant_one(model):
            pass

    def _grant_one(self, model: str) -> bool:
        waiters = [one for one in self._waiting.get(model, ()) if not one.granted.done()]
        if not waiters:
            return False
        # A thousand may wait, and this is asked at each end and each first token.
        models = {id(one.candidates.model): one.candidates.model for one in waiters}.values()
        free = waiters[0].candidates.observed.free(group for one in models for group in one.groups)
        if not free.room and not any(one.external for one in models):
            return False
        if not any(one.candidates.may_begin(free) for one in waiters):
            return False
        waiters.sort(key=lambda one: self._order(model, one))
        ahead = RequestsAhead()
        looked_at = Counter[bool]()
        for waiter in waiters:
            candidates, may_begin = waiter.candidates, waiter.candidates.may_begin(free)
            # A limit for each: those for a full group must not hide one that finds its own free, however many there are.
            if looked_at[may_begin] >= _LOOKED_AT and not (may_begin and candidates.must_begin(free)):
                continue
            looked_at[may_begin] += 1
            found = candidates.forecasts(ahead)
            if _has_room(found):
                waiter.granted.set_result(self._grant(candidates, found))
                self._remove(model, waiter)
                return True
            # Not counted, all would wait for the quickest group while others are idle.
            ahead.add(found[0], candidates.needs.prompt_tokens)
        return False

    def _order(self, model: str, waiter: _Waiter) -> tuple[bool, int, int]:
        candidates = waiter.candidates
        return candidates.priority == "batch", self._running.get((model, candidates.key), 0), waiter.number

    def _grant(self, candidates: CandidateGroups, found: list[GroupForecast]) -> QueuedSlot:
        owner = (candidates.model.name, candidates.key)
        self._running[owner] += 1
        return QueuedSlot(self, owner, candidates, found)

    def _remove(self, model: str, waiter: _Waiter) -> None:
        waiters = self._waiting.get(model, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiting.pop(model, None)


class QueuedSlot(Slot):
    """A slot that counts for its key's turn. `owner`: model and key of its request."""

    def __init__(
        self,
        queues: ModelQueues,
        owner: tuple[str, str],
        candidates: CandidateGroups,
        found: list[GroupForecast],
    ) -> None:
        self.owner = owner
        self._queues: ModelQueues | None = queues
        super().__init__(candidates, found)

    def close(self) -> None:
        """Ends it. May be called twice."""
        if self._queues is not None:
            self._queues.release(self)
            self._queues = None
        super().close()


def _give_back(waiter: _Waiter) -> None:
    """Ends a slot that was granted to a request that has just gone."""
    granted = waiter.granted
    if not granted.done():
        granted.cancel()
    elif not granted.cancelled() and granted.exception() is None:
        granted.result().close()


def _refuse(waiter: _Waiter, error: ApiError) -> None:
    if not waiter.granted.done():
        waiter.granted.set_exception(error)


def _has_room(found: Sequence[GroupForecast]) -> bool:
    return not found or not found[0].is_full


def _retry_after(found: Sequence[GroupForecast], waiting: int) -> int:
    """Seconds until the requests before it have been served, by their forecasts."""
    slots = sum(one.group.concurrency or 1 for one in found)
    mean_s = sum(one.prefill_s + one.decode_s for one in found) / max(1, len(found))
    return min(_LONGEST_RETRY_S, max(1, math.ceil((waiting + 1) * mean_s / max(1, slots))))
