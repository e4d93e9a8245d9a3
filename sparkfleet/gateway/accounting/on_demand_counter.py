"""Counts requests for models on demand: their deployments end when none has come for long, or others need the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from sparkfleet.gateway.report import OnDemandUse
from sparkfleet.gateway.routing_table import ModelEntry


class OnDemandCounter:
    """Requests of one gateway replica for models on demand. `clock`: seconds that only go forward."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._in_flight = Counter[str]()
        self._ended: dict[str, float] = {}
        self._began = clock()
        self._ready_since: dict[str, float] = {}

    def follow(self, models: Iterable[ModelEntry]) -> None:
        """Notes which models are ready by the table from now on."""
        now = self._clock()
        ready = (one.name for one in models if one.on_demand and one.state == "ready")
        self._ready_since = {name: self._ready_since.get(name, now) for name in ready}

    def begin(self, model: ModelEntry) -> None:
        """Counts a request that is admitted, if its model is on demand."""
        if model.on_demand:
            self._in_flight[model.name] += 1

    def end(self, model: ModelEntry) -> None:
        """Counts the end of a request that `begin` has counted."""
        if model.on_demand:
            self._in_flight[model.name] -= 1
            self._ended[model.name] = self._clock()

    def uses(self, models: Iterable[ModelEntry], waiting: Callable[[str], int]) -> dict[str, OnDemandUse]:
        """The use of each model on demand. `waiting`: requests that wait for one, by its name."""
        return {one.name: self._use(one, waiting(one.name)) for one in models if one.on_demand}

    def _use(self, model: ModelEntry, waiting: int) -> OnDemandUse:
        in_flight = self._in_flight[model.name]
        now, since = self._clock(), self._ready_since.get(model.name)
        return OnDemandUse(
            in_flight=in_flight,
            waiting=waiting if model.awaits_start else 0,
            idle_s=0.0 if in_flight else now - self._ended.get(model.name, self._began),
            ready_s=None if since is None else now - since,
        )
