"""Requests in flight per group, counted from what this gateway replica sent.

A fleet has a gateway on each node. Each counts its own requests only: gateways need not communicate, and equal groups get
equal shares of every gateway's requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from sparkfleet.gateway.requirements import Requirements, doubts
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

LATELY_S = 5.0
"""Seconds for which a failed group counts as busy in all its slots. It has no requests in flight, and would otherwise be the
first choice until the controller takes it out of the table. Not longer: if the request was at fault, the other groups must
not carry everything."""


class InFlight:
    """Counts the requests in flight of each group.

    Args:
        clock: seconds, replaceable in tests.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._failed: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        self._turn = 0

    def begin(self, app: str) -> None:
        """Counts a request sent to a group."""
        self._turn += 1
        self._held[app] += 1
        self._asked[app] = self._turn

    def end(self, app: str) -> None:
        """Counts the end of a group's request."""
        self._held[app] -= 1
        if not self._held[app]:
            del self._held[app]

    def fail(self, app: str) -> None:
        """Records that a group did not answer."""
        self._failed[app] = self._clock()

    def held(self, app: str) -> int:
        """Requests in flight of a group."""
        return self._held[app]

    def ranked(self, groups: Iterable[GroupEntry], needs: Requirements) -> list[GroupEntry]:
        """Groups, best first.

        By fewest doubts (`requirements.doubts`), then by fewest requests in flight per slot, then by the longest time since
        their last request.
        """
        known = list(groups)
        fewest = min((group.concurrency for group in known if group.concurrency), default=1)
        now = self._clock()

        def order(group: GroupEntry) -> tuple[tuple[int, int], float, int]:
            failed = now - self._failed.get(group.app, -LATELY_S) < LATELY_S
            busy = self._held[group.app] / (group.concurrency or fewest) + failed
            return doubts(group, needs), busy, self._asked.get(group.app, 0)

        return sorted(known, key=order)

    def keep(self, apps: Iterable[str]) -> None:
        """Forgets all other applications: they are gone."""
        there = frozenset(apps)
        self._failed = {app: at for app, at in self._failed.items() if app in there}
        self._asked = {app: turn for app, turn in self._asked.items() if app in there}


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidate endpoints for one request."""

    model: ModelEntry
    groups: tuple[GroupEntry, ...]
    """The ready groups that may serve it, by their known capabilities."""
    needs: Requirements
    loads: InFlight

    def ranked(self) -> list[GroupEntry]:
        """The groups, best first, at this moment."""
        return self.loads.ranked(self.groups, self.needs)
