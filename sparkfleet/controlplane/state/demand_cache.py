"""Demand for deployments that start with their first request, as the gateways report it, and as people load them.

In memory only: it is repeated every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.report_cache import STALE_S
from sparkfleet.gateway.report import GatewayReport, OnDemandUse

AGAIN_S = 90.0
"""Seconds for which a deployment keeps its place in the line after its last request has gone without an answer: clients of
OpenAI and Anthropic ask again after `Retry-After`, if that is 60 s at most, or else within 8 s."""
LOAD_S = 15.0
"""Seconds for which `sparkfleet load` counts as a request that waits; it is repeated while the command waits."""


class _Load(NamedTuple):
    """A person who loads a deployment."""

    by: str
    until: float


class DemandCache:
    """The newest demand of each gateway replica. `steady`: seconds that only go forward."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._newest: dict[str, tuple[float, Mapping[str, OnDemandUse]]] = {}
        self._loads: dict[str, _Load] = {}
        self._loaded_at: dict[str, float] = {}
        """Times at which deployments were ready that a person has loaded."""
        self._longest_start_s: dict[str, float] = {}
        """Seconds of the longest start of each deployment since that with which it became ready."""
        self._waiting_since: dict[str, float] = {}
        self._left: dict[str, tuple[float, float]] = {}
        """Deployments whose requests have gone without an answer: since when they waited, and when they went."""
        self._present: tuple[float, dict[str, RequestDemand]] | None = None
        """The demand at one moment: a round needs it several times."""

    def take(self, report: GatewayReport) -> bool:
        """Stores what a replica reports; True if requests wait for a deployment for which none waited before."""
        now, before, self._present = self._steady(), set(self._waiting_since), None
        self._newest[report.replica] = (now, report.on_demand)
        self._newest = {one: found for one, found in self._newest.items() if now - found[0] < STALE_S}
        self._end_loads(now)
        self._line_up(now)
        return not self._waiting_since.keys() <= before

    def load(self, name: str, by: str, for_s: float = LOAD_S) -> bool:
        """Lets a person count as a request that waits, for so many seconds. True if none waited before."""
        now, before, self._present = self._steady(), set(self._waiting_since), None
        before_it = self._loads.get(name, _Load(by, now))
        # A command beside the page ends no wait that was begun there.
        self._loads[name] = max(before_it, _Load(by, now + for_s), key=lambda one: one.until)
        self._end_loads(now)
        self._line_up(now)
        return not self._waiting_since.keys() <= before

    def started(self, name: str, seconds: float) -> None:
        """Takes the seconds that the start of a group took which is ready. The first one replaces what was known."""
        self._present = None
        before_s = self._longest_start_s.get(name, 0.0) if name in _ready(self._seen(self._steady())) else 0.0
        self._longest_start_s[name] = max(before_s, seconds)

    def unload(self, name: str) -> None:
        """Forgets that a person loads a deployment, and what the replicas have reported of it.

        A request that waited at the last report may have been served since: it would start the deployment again. One that
        waits still is in the next report.
        """
        self._present = None
        self._loads.pop(name, None)
        self._loaded_at.pop(name, None)
        self._newest = {
            replica: (at, {one: use for one, use in uses.items() if one != name})
            for replica, (at, uses) in self._newest.items()
        }

    def present(self) -> Mapping[str, RequestDemand]:
        """The demand for each deployment of which a replica reports that is not silent, or that a person loads: of the
        others nothing is known."""
        now = self._steady()
        if self._present is None or self._present[0] != now:
            self._end_loads(now)
            self._line_up(now)
            self._present = now, {n: self._merged(n, seen, now) for n, seen in self._seen(now).items()}
        return self._present[1]

    def outline(self) -> list[tuple[object, ...]]:
        """Times since which requests wait, and deployments with a request in flight: the policy depends on these alone."""
        return [(name, one.waiting_since, one.in_flight > 0) for name, one in sorted(self.present().items())]

    def _seen(self, now: float) -> Mapping[str, list[tuple[float, OnDemandUse]]]:
        """Uses of each deployment that replicas have reported which are not silent, and when."""
        found: dict[str, list[tuple[float, OnDemandUse]]] = defaultdict(list)
        for at, uses in self._newest.values():
            if now - at < STALE_S:
                for name, use in uses.items():
                    found[name].append((at, use))
        for name in self._loads:
            found[name] += []
        return found

    def _line_up(self, now: float) -> None:
        """Notes since when each deployment has been waited for. One whose requests come again has its place again."""
        seen = self._seen(now)
        waiting = {
            name for name, uses in seen.items() if any(use.waiting for _, use in uses)
        } | self._loads.keys()
        served = _ready(seen)
        for name in self._waiting_since.keys() - waiting - served:
            self._left[name] = (self._waiting_since[name], now)
        kept = {
            name: since
            for name, (since, at) in self._left.items()
            if now - at < AGAIN_S and name not in served
        }
        self._left = {name: self._left[name] for name in kept.keys() - waiting}
        self._waiting_since = {name: self._waiting_since.get(name, kept.get(name, now)) for name in waiting}

    def _end_loads(self, now: float) -> None:
        """Ends loads whose deployment is ready, or whose command has gone."""
        ready = _ready(self._seen(now))
        self._loaded_at |= dict.fromkeys(self._loads.keys() & ready, now)
        self._loaded_at = {name: at for name, at in self._loaded_at.items() if name in ready}
        self._loads = {
            name: one for name, one in self._loads.items() if name not in ready and now < one.until
        }

    def _merged(self, name: str, seen: Collection[tuple[float, OnDemandUse]], now: float) -> RequestDemand:
        in_flight = sum(use.in_flight for _, use in seen)
        # A load is a use that ends when its deployment is ready.
        loaded_at = now if name in self._loads else self._loaded_at.get(name, float("-inf"))
        used_at = now if in_flight else max([loaded_at, *(at - use.idle_s for at, use in seen)])
        unused_s = 0.0 if in_flight else min([now - loaded_at, *(use.idle_s for _, use in seen)])
        ready = [at - use.ready_s for at, use in seen if use.ready_s is not None]
        by = self._loads[name].by if name in self._loads else ""
        return RequestDemand(
            in_flight=in_flight,
            waiting_since=self._waiting_since.get(name),
            used_at=used_at,
            unused_s=unused_s,
            ready_since=min(ready, default=None),
            longest_start_s=self._longest_start_s.get(name, 0.0),
            loaded_by=by,
        )


def _ready(seen: Mapping[str, Collection[tuple[float, OnDemandUse]]]) -> set[str]:
    return {name for name, uses in seen.items() if any(use.ready_s is not None for _, use in uses)}
