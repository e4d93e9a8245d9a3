"""Groups under a simulated clock: each reads prompts one after the other, and decodes all its requests at once."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.forecast import GroupForecast
from sparkfleet.gateway.policy.speeds import decode_tps, prefill_tps
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry


@dataclass(frozen=True)
class SimulatedRequest:
    at: float
    needs: Requirements
    answer: int


Router = Callable[[ObservedGroups, Sequence[GroupEntry], SimulatedRequest], GroupForecast]


@dataclass
class _Engine:
    free: float = 0.0
    cached: set[int] = field(default_factory=set)
    running: int = 0


@dataclass
class FleetSimulation:
    """Runs requests through a router. `mean_s` and `ttft_s` are means over all of them."""

    groups: Sequence[GroupEntry]
    router: Router
    ttfts: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    """Share of each prompt that its group had cached."""

    def run(self, requests: Sequence[SimulatedRequest]) -> FleetSimulation:
        engines = {group.app: _Engine() for group in self.groups}
        observed = ObservedGroups()
        ends: list[tuple[float, int, str]] = []
        firsts: list[tuple[float, int, str, int]] = []
        for number, one in enumerate(sorted(requests, key=lambda request: request.at)):
            while firsts and firsts[0][0] <= one.at:
                _, _, app, cold = heapq.heappop(firsts)
                observed.end_prefill(app, cold)
            while ends and ends[0][0] <= one.at:
                _, _, app = heapq.heappop(ends)
                observed.end(app)
                engines[app].running -= 1
            chosen = self.router(observed, self.groups, one)
            group, engine = chosen.group, engines[chosen.group.app]
            shared = sum(block in engine.cached for block in one.needs.prefix) / max(1, len(one.needs.prefix))
            engine.cached.update(one.needs.prefix)
            cold = one.needs.prompt_tokens - chosen.warm_tokens
            observed.begin(group.app, cold)
            observed.caches.add(group, one.needs.prefix)
            slots = group.concurrency or 1
            begin = max(one.at, engine.free)
            first = begin + one.needs.prompt_tokens * (1 - shared) / prefill_tps(group)
            engine.free = first
            over = max(0, engine.running - slots + 1) / slots
            last = first + one.answer / decode_tps(group, engine.running, slots) * (1 + over)
            engine.running += 1
            heapq.heappush(firsts, (first, number, group.app, cold))
            heapq.heappush(ends, (last, number, group.app))
            self.ttfts.append(first - one.at)
            self.durations.append(last - one.at)
            self.sent.append(group.app)
            self.hits.append(shared)
        return self

    @property
    def mean_s(self) -> float:
        return fmean(self.durations)

    @property
    def ttft_s(self) -> float:
        return fmean(self.ttfts)


def ours(observed: ObservedGroups, groups: Sequence[GroupEntry], one: SimulatedRequest) -> GroupForecast:
    return observed.forecasts(groups, one.needs, "m")[0]


def round_robin() -> Router:
    turn = iter(range(1_000_000))

    def route(observed: ObservedGroups, groups: Sequence[GroupEntry], one: SimulatedRequest) -> GroupForecast:
        wanted = groups[next(turn) % len(groups)].app
        return next(found for found in observed.forecasts(groups, one.needs) if found.group.app == wanted)

    return route


def least_loaded(able: Callable[[GroupEntry, Requirements], bool]) -> Router:
    """The least busy of those that are able, in turns: the gateway's order before it knew speeds."""

    def route(observed: ObservedGroups, groups: Sequence[GroupEntry], one: SimulatedRequest) -> GroupForecast:
        found = [found for found in observed.forecasts(groups, one.needs) if able(found.group, one.needs)]
        return min(
            found, key=lambda one: (observed.held(one.group.app) / (one.group.concurrency or 1), one.turn)
        )

    return route


def arrivals(rate: float, count: int, seed: int = 1) -> list[float]:
    """Times of requests that come at random, Unix-free seconds."""
    drawn = random.Random(seed)
    at, found = 0.0, []
    for _ in range(count):
        at += drawn.expovariate(rate)
        found.append(at)
    return found
