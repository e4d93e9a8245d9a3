"""Demand for deployments that start with their first request, as the gateways report it.

In memory only: it is repeated every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.report_cache import STALE_S
from sparkfleet.gateway.report import GatewayReport, OnDemandUse


class DemandCache:
    """The newest demand of each gateway replica. `steady`: seconds that only go forward."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._newest: dict[str, tuple[float, Mapping[str, OnDemandUse]]] = {}
        self._waiting_since: dict[str, float] = {}

    def take(self, report: GatewayReport) -> bool:
        """Stores what a replica reports; True if requests wait for a deployment for which none waited before."""
        now, before = self._steady(), set(self._waiting_since)
        self._newest[report.replica] = (now, report.on_demand)
        self._newest = {one: found for one, found in self._newest.items() if now - found[0] < STALE_S}
        waiting = {name for _, uses in self._newest.values() for name, use in uses.items() if use.waiting}
        self._waiting_since = {name: self._waiting_since.get(name, now) for name in waiting}
        return not waiting <= before

    def present(self) -> dict[str, RequestDemand]:
        """The demand for each deployment of which a replica reports that is not silent: of the others nothing is known."""
        now = self._steady()
        found: dict[str, list[tuple[float, OnDemandUse]]] = defaultdict(list)
        for at, uses in self._newest.values():
            if now - at < STALE_S:
                for name, use in uses.items():
                    found[name].append((at, use))
        return {name: self._merged(name, seen, now) for name, seen in found.items()}

    def outline(self) -> list[tuple[object, ...]]:
        """Times since which requests wait, and deployments with a request in flight: the policy depends on these alone."""
        return [(name, one.waiting_since, one.in_flight > 0) for name, one in sorted(self.present().items())]

    def _merged(self, name: str, seen: list[tuple[float, OnDemandUse]], now: float) -> RequestDemand:
        in_flight = sum(use.in_flight for _, use in seen)
        used_at = now if in_flight else max(at - use.idle_s for at, use in seen)
        unused_s = 0.0 if in_flight else min(use.idle_s for _, use in seen)
        ready = [at - use.ready_s for at, use in seen if use.ready_s is not None]
        waiting_since = self._waiting_since.get(name)
        return RequestDemand(in_flight, waiting_since, used_at, unused_s, min(ready, default=None))
