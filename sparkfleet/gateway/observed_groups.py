"""Observations of the groups, by what this gateway replica sent: requests in flight, failures, caches, sessions, speeds.

A fleet has one gateway (docs/decisions.md, 77). While it is replaced there may be two for seconds: each counts its own
requests only, and they need not communicate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from sparkfleet.gateway.policy.absences import Absences
from sparkfleet.gateway.policy.circuit import Circuit, opened
from sparkfleet.gateway.policy.forecast import GroupForecast, GroupLoad, forecasts
from sparkfleet.gateway.policy.learned_speeds import LearnedSpeeds
from sparkfleet.gateway.policy.prefix_cache import PrefixCaches
from sparkfleet.gateway.policy.sessions import SessionPlace, Sessions
from sparkfleet.gateway.policy.unusable_answers import UnusableAnswers
from sparkfleet.gateway.request.prefix_blocks import ENDS, length_of
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed


@dataclass(slots=True)
class RequestsAhead:
    """Requests that wait before one, by the group that each waits for."""

    requests: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    """Of their prompts, as far as they are not cached."""

    def add(self, found: GroupForecast, prompt_tokens: int) -> None:
        """Counts one, with the forecast of the group that it waits for."""
        self.requests[found.group.app] += 1
        self.tokens[found.group.app] += max(0, prompt_tokens - found.warm_tokens)


class FreeGroups(NamedTuple):
    """Groups with a free slot, and those whose circuit is open, by application."""

    room: frozenset[str]
    failed: frozenset[str]

    def any_of(self, apps: frozenset[str]) -> bool:
        """True if one of these groups has a free slot: one that has not failed lately, unless all have."""
        found = self.room & apps
        return bool(found) and (not found <= self.failed or apps <= self.failed)


LASTING = 2
"""Failures in a row, each after a pause of the circuit, from which on a failure is no passing one."""

NOBODY = RequestsAhead()
"""No requests wait."""


class ObservedGroups:
    """Records what requests show of each group, and forecasts the next one on it.

    Counted here: requests in flight, prompts whose first token has not come, circuits, turns. In parts: `absences` (lacks of
    engines), `learned` (speeds), `caches` (prefixes), `sessions`, `unusable` (answers of no API).
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: defaultdict[str, int] = defaultdict(int)  # a Counter is slower to end
        self._pending: defaultdict[str, int] = defaultdict(int)
        self._circuits: dict[str, Circuit] = {}
        """Of the groups that failed and have not answered since."""
        self._failures: dict[str, tuple[str, str]] = {}
        """Name of the group and its last failure in words, by application, as far as the failure is known."""
        self._asked: dict[str, int] = {}
        self._speeds: dict[str, GroupSpeed | None] = {}
        """Of the groups of the last table."""
        self._turn = 0
        self.absences = Absences()
        self.learned = LearnedSpeeds()
        self.caches = PrefixCaches()
        self.sessions = Sessions()
        self.unusable = UnusableAnswers()
        self.on_end: Callable[[], None] = lambda: None
        """Called when a group has one request fewer, or the order of the groups has changed otherwise."""
        self.on_pause: Callable[[float], None] = lambda seconds: None
        """Called with the seconds after which a group that failed may be tried: time alone changes the order then."""

    def begin(self, app: str, prompt_tokens: int = 0) -> int:
        """Counts a request sent to a group, with the tokens of its prompt that are not cached. Returns its number."""
        self._turn += 1
        self._held[app] += 1
        self._pending[app] += prompt_tokens
        self._asked[app] = self._turn
        if circuit := self._circuits.get(app):
            self._pause(app, circuit.probed_by(self._turn, self._clock()))
        return self._turn

    def end_prefill(self, app: str, prompt_tokens: int) -> None:
        """Counts the first byte of an answer: its prompt is no longer ahead of others."""
        self._pending[app] -= prompt_tokens
        if not self._pending[app]:
            del self._pending[app]

    def end(self, app: str, number: int = 0) -> None:
        """Counts the end of a group's request, the one with this number."""
        self._held[app] -= 1
        if not self._held[app]:
            del self._held[app]
        if circuit := self._circuits.get(app):
            self._circuits[app] = circuit.after_end_of(number, self._clock())
        self.on_end()

    def succeed(self, app: str, number: int) -> None:
        """Records that a group has begun to answer the request with this number."""
        circuit = self._circuits.get(app)
        if circuit is not None and circuit.is_closed_by(number):
            del self._circuits[app]
            self._failures.pop(app, None)
            self.on_end()  # it is no longer busy for those that wait

    def fail(self, app: str, group: str = "", why: str = "") -> None:
        """Records that a group did not answer.

        Args:
            group: its name.
            why: the reason in words; "" if it is not known, or is shown elsewhere.
        """
        if why:
            self._failures[app] = group, why
        self._pause(app, opened(self._circuits.get(app), self._clock()))
        self.forget_cached(app)
        self.absences.forget(app)
        self.on_end()  # another group may now be the best of those that wait

    def forget_cached(self, app: str) -> None:
        """Forgets what a group's engine had cached: it has ended."""
        self.caches.forget(app)
        self.sessions.forget(app)

    def _pause(self, app: str, circuit: Circuit) -> None:
        if circuit != self._circuits.get(app):
            self._circuits[app] = circuit
            self.on_pause(circuit.until - self._clock())

    def circuit_is_open(self, app: str) -> bool:
        """True if a group failed, and is not to be tried yet or is just being tried."""
        circuit = self._circuits.get(app)
        return circuit is not None and circuit.is_open(self._clock())

    def circuit_line(self, app: str) -> str:
        """The circuit of a group in words; "" if it is closed."""
        circuit = self._circuits.get(app)
        return circuit.line(self._clock()) if circuit is not None else ""

    def cannot_use(self, app: str, group: str, why: str, do: str) -> None:
        """Counts an answer that no client can use; see `UnusableAnswers.note`."""
        self.unusable.note(app, group, why, do, self._clock())

    def failing(self) -> tuple[str, ...]:
        """Groups that count as ready and fail again and again, each as a sentence with its last failure."""
        return *self._lost_again(), *self.unusable.lasting()

    def _lost_again(self) -> Iterator[str]:
        yield from (
            f"{group} counts as ready, and requests fail there: {why}, {circuit.failures} times in a row."
            f" `sparkfleet logs {group}` shows its output."
            for app, (group, why) in self._failures.items()
            if (circuit := self._circuits.get(app)) is not None and circuit.failures >= LASTING
        )

    def held(self, app: str) -> int:
        """Requests in flight of a group."""
        return self._held.get(app, 0)

    def has_room(self, group: GroupEntry) -> bool:
        """True if a group has a free slot, or its slots are not known."""
        return not group.concurrency or self._held.get(group.app, 0) < group.concurrency

    def free(self, groups: Iterable[GroupEntry]) -> FreeGroups:
        """The groups among these that have a free slot, or an open circuit."""
        ready = [one for one in groups if one.ready]
        return FreeGroups(
            frozenset(one.app for one in ready if self.has_room(one)),
            frozenset(one.app for one in ready if self.circuit_is_open(one.app)),
        )

    def pending(self, app: str) -> int:
        """Tokens of prompts for whose first token a group's requests wait."""
        return self._pending.get(app, 0)

    def forecasts(
        self,
        groups: Iterable[GroupEntry],
        needs: Requirements,
        model: str = "",
        session: str = "",
        ahead: RequestsAhead = NOBODY,
    ) -> list[GroupForecast]:
        """The forecast of a request on each of these groups, best first. `session`: see `Sessions`."""
        loads = self._loads(groups, needs, model, ahead)
        if place := self.sessions.place(session):
            loads = [_with_session(load, place, needs.prompt_tokens) for load in loads]
        return forecasts(loads, needs, self.learned.answer_tokens(model, needs.answer_tokens))

    def follow(self, groups: Iterable[GroupEntry], models: Iterable[str] = ()) -> None:
        """Forgets all other groups and models: they are gone. A group's corrections are those of its present plan."""
        before, self._speeds = self._speeds, {}
        ready: set[str] = set()
        for group in groups:
            if group.ready:
                ready.add(group.app)
            self._speeds[group.app] = group.speed
            if before.get(group.app, group.speed) != group.speed:
                self.learned.forget(group.app)
            if group.speed is not None and group.measured:
                self.learned.saw_start(group.app, group.measured)
        there = self._speeds.keys()
        self._circuits = {app: circuit for app, circuit in self._circuits.items() if app in there}
        # Another engine may serve it the next time that it is ready.
        self._failures = {app: last for app, last in self._failures.items() if app in ready}
        self.unusable.keep(ready)
        self._asked = {app: turn for app, turn in self._asked.items() if app in there}
        self.caches.keep(there)
        self.sessions.keep(there)
        self.learned.keep(there, models)

    def _loads(
        self, groups: Iterable[GroupEntry], needs: Requirements, model: str, ahead: RequestsAhead
    ) -> list[GroupLoad]:
        """The groups at this moment. In one loop: a request waits for it (benchmarks/policy.py)."""
        now, prefix, caches, factors = self._clock(), needs.prefix, self.caches, self.learned.factors
        held, pending, asked, circuits = self._held, self._pending, self._asked, self._circuits
        before, prompts = ahead.requests, ahead.tokens
        whole = length_of(prefix, needs.characters)
        found = []
        for group in groups:
            app = group.app
            circuit = circuits.get(app)
            blocks = caches.blocks(app, prefix)
            prefill_factor, decode_factor = factors(app, model if group.speed is None else "")
            found.append(
                GroupLoad(
                    group,
                    held.get(app, 0) + before.get(app, 0),
                    pending.get(app, 0) + prompts.get(app, 0),
                    circuit is not None and circuit.is_open(now),
                    asked.get(app, 0),
                    ENDS[blocks - 1] / whole if blocks else 0.0,
                    prefill_factor,
                    decode_factor,
                )
            )
        return found


def _with_session(load: GroupLoad, place: SessionPlace, prompt_tokens: int) -> GroupLoad:
    """A load with the part of a prompt that its session had in its last one, if that went to this group."""
    if load.group.app != place.app or not prompt_tokens:
        return load
    return load._replace(warm=max(load.warm, min(1.0, place.tokens / prompt_tokens)))
