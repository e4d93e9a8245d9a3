"""Simulated gateway replica: requests for models on demand, which wait for a start or run on a group, and its reports.

Its counts are the real ones (`OnDemandCounter`); the way of a request is reduced to its begin, its wait and its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparkfleet.gateway.accounting.on_demand_counter import OnDemandCounter
from sparkfleet.gateway.admission.model_queue import START_S
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import ModelEntry, RoutingTable
from sparkfleet.lab.simulation.timeline import Timeline

RequestEnd = Literal["served", "refused", "left", "lost"]


@dataclass(eq=False)
class SimulatedRequest:
    """One request of a client."""

    model: str
    lasts_s: float
    """Seconds from its begin on a group to its end."""
    leaves_at: float = float("inf")
    """Moment at which its client leaves if it still waits, simulated seconds."""
    then: Callable[[RequestEnd], object] = lambda end: None
    """Called at its end."""
    came_at: float = 0.0
    app: str = ""
    """The application that serves it; "" while it waits."""
    ends_at: float = float("inf")
    entry: ModelEntry | None = None
    """The model as it was when the request was counted."""


class SimulatedGateway:
    """One replica of the gateway.

    Args:
        name: of the replica.
        time: the simulated clock.
        is_there: True if the engine of an application serves.
    """

    def __init__(self, name: str, time: Timeline, is_there: Callable[[str], bool]) -> None:
        self.name = name
        self.began_at = time.seconds
        self.table = RoutingTable()
        self.waiting: list[SimulatedRequest] = []
        self.served: list[SimulatedRequest] = []
        self.has_news = True
        """True if it is to report at once."""
        self.reported_at = float("-inf")
        self._time = time
        self._is_there = is_there
        self._counter = OnDemandCounter(lambda: time.seconds)

    def take(self, request: SimulatedRequest) -> bool:
        """Takes a client's request; False if it is refused, and does not count."""
        request.came_at = self._time.seconds
        model = self.table.models.get(request.model)
        if model is None or not (model.awaits_start or model.apps):
            request.then("refused")
            return False
        request.entry = model
        self._counter.begin(model)
        if model.awaits_start:
            if not any(one.model == request.model for one in self.waiting):
                self.has_news = True
            self.waiting.append(request)
        else:
            self._serve(request, model)
        return True

    def follow(self, table: RoutingTable) -> None:
        """Routes by this table from now on."""
        if table.version in (0, self.table.version):
            return
        self.table = table
        self._counter.follow(table.models.values())
        for request in tuple(self.waiting):
            model = table.models.get(request.model)
            if model is not None and model.awaits_start:
                continue
            self.waiting.remove(request)
            if model is None or not model.apps:
                self._end(request, "refused")
            else:
                self._serve(request, model)

    def pass_time(self) -> None:
        """Ends the requests that are over by now."""
        now = self._time.seconds
        for request in tuple(self.served):
            if now >= request.ends_at or not self._is_there(request.app):
                self.served.remove(request)
                self._end(request, "served" if now >= request.ends_at else "lost")
        for request in tuple(self.waiting):
            if now >= request.leaves_at or now - request.came_at >= START_S:
                self.waiting.remove(request)
                self._end(request, "left" if now >= request.leaves_at else "refused")

    def waits(self, model: str) -> bool:
        """True if a request waits for a model."""
        return any(one.model == model for one in self.waiting)

    def in_flight(self, model: str) -> bool:
        """True if a request for a model waits or is served."""
        return any(one.model == model for one in (*self.waiting, *self.served))

    def busy_until(self, app: str) -> float:
        """Moment at which the last of the present requests of an application ends, simulated seconds."""
        return max((one.ends_at for one in self.served if one.app == app), default=0.0)

    def report(self) -> GatewayReport:
        """Report to the controller."""
        self.has_news, self.reported_at = False, self._time.seconds
        use = self._counter.uses(
            self.table.models.values(), lambda name: sum(one.model == name for one in self.waiting)
        )
        return GatewayReport(
            replica=self.name,
            url="http://127.0.0.1:1/v1",
            metrics_url="http://127.0.0.1:2/metrics",
            at=self._time.unix(),
            on_demand=use,
        )

    def close(self) -> None:
        """Ends with all its requests."""
        for request in (*self.waiting, *self.served):
            self._end(request, "lost")
        self.waiting, self.served = [], []

    def _serve(self, request: SimulatedRequest, model: ModelEntry) -> None:
        request.app = model.apps[0]
        request.ends_at = self._time.seconds + request.lasts_s
        self.served.append(request)

    def _end(self, request: SimulatedRequest, end: RequestEnd) -> None:
        assert request.entry is not None
        self._counter.end(request.entry)
        request.then(end)
