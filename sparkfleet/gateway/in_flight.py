"""Requests in flight per group, counted from what this gateway replica sent.

A fleet has one gateway (docs/decisions.md, 77). While it is replaced there may be two for seconds: each counts its own
requests only, and they need not communicate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from sparkfleet.gateway.policy.forecast import GroupForecast, GroupLoad, forecasts
from sparkfleet.gateway.policy.learned import LearnedSpeeds
from sparkfleet.gateway.policy.prefix_cache import PrefixCaches
from sparkfleet.gateway.policy.sessions import SessionPlace, Sessions
from sparkfleet.gateway.request.prefix_blocks import share_of
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry

LATELY_S = 5.0
"""Seconds for which a failed group counts as busy in all its slots. It has no requests in flight, and would otherwise be the
first choice until the controller takes it out of the table. Not longer: if the request was at fault, the other groups must
not carry everything."""


class InFlight:
    """Counts the requests in flight of each group, and what they have probably left in its cache.

    Args:
        clock: seconds, replaceable in tests.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._pending: Counter[str] = Counter()
        self._failed: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        self._turn = 0
        self.learned = LearnedSpeeds()
        self.caches = PrefixCaches()
        self.sessions = Sessions()
        self.on_end: Callable[[], None] = lambda: None
        """Called when a group has one request fewer, or the order of the groups has changed otherwise."""

    def begin(self, app: str, prompt_tokens: int = 0) -> None:
        """Counts a request sent to a group, with the tokens of its prompt that are not cached."""
        self._turn += 1
        self._held[app] += 1
        self._pending[app] += prompt_tokens
        self._asked[app] = self._turn

    def prefilled(self, app: str, prompt_tokens: int) -> None:
        """Counts the first byte of an answer: its prompt is no longer ahead of others."""
        self._pending[app] -= prompt_tokens
        if not self._pending[app]:
            del self._pending[app]

    def end(self, app: str) -> None:
        """Counts the end of a group's request."""
        self._held[app] -= 1
        if not self._held[app]:
            del self._held[app]
        self.on_end()

    def fail(self, app: str) -> None:
        """Records that a group did not answer."""
        self._failed[app] = self._clock()
        self.caches.forget(app)
        self.sessions.forget(app)
        self.on_end()  # another group may now be the best of those that wait

    def failed_lately(self, app: str) -> bool:
        """True if a group did not answer within the last `LATELY_S`."""
        since = self._clock() - LATELY_S
        return self._failed.get(app, since) > since

    def held(self, app: str) -> int:
        """Requests in flight of a group."""
        return self._held[app]

    def pending(self, app: str) -> int:
        """Tokens of prompts for whose first token a group's requests wait."""
        return self._pending[app]

    def forecasts(
        self, groups: Iterable[GroupEntry], needs: Requirements, model: str = "", session: str = ""
    ) -> list[GroupForecast]:
        """The forecast of a request on each of these groups, best first. `session`: see `Sessions`."""
        since = self._clock() - LATELY_S
        loads = [self._load(group, needs, since) for group in groups]
        if place := self.sessions.place(session):
            loads = [_with_session(load, place, needs.prompt_tokens) for load in loads]
        return forecasts(loads, needs, self.learned.answer_tokens(model, needs.answer_tokens))

    def ranked(self, groups: Iterable[GroupEntry], needs: Requirements) -> list[GroupEntry]:
        """Groups, best first (`policy.forecast`)."""
        return [one.group for one in self.forecasts(groups, needs)]

    def keep(self, apps: Iterable[str], models: Iterable[str] = ()) -> None:
        """Forgets all other applications and models: they are gone."""
        there = frozenset(apps)
        self._failed = {app: at for app, at in self._failed.items() if app in there}
        self._asked = {app: turn for app, turn in self._asked.items() if app in there}
        self.caches.keep(there)
        self.sessions.keep(there)
        self.learned.keep(there, models)

    def _load(self, group: GroupEntry, needs: Requirements, since: float) -> GroupLoad:
        app = group.app
        prefix = needs.prefix
        blocks = self.caches.blocks(app, prefix)
        prefill_factor, decode_factor = self.learned.factors(app)
        return GroupLoad(
            group,
            self._held.get(app, 0),
            self._pending.get(app, 0),
            self._failed.get(app, since) > since,
            self._asked.get(app, 0),
            share_of(blocks, prefix, needs.characters) if blocks else 0.0,
            prefill_factor,
            decode_factor,
        )


def _with_session(load: GroupLoad, place: SessionPlace, prompt_tokens: int) -> GroupLoad:
    """A load with the part of a prompt that its session had in its last one, if that went to this group."""
    if load.group.app != place.app or not prompt_tokens:
        return load
    return load._replace(warm=max(load.warm, min(1.0, place.tokens / prompt_tokens)))
