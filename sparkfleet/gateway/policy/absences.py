"""Endpoints that groups lack, and sound in prompts: plans do not have these, so they are learned from refusals of engines.

It holds while a group is ready. It never leaves a request without a group: if all lack the same, they are asked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from sparkfleet.gateway.access.allowed_paths import allowed_methods
from sparkfleet.gateway.access.response_owners import response_of
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry

AUDIO = "audio"


def engine_needs_of(path: str, needs: Requirements) -> tuple[str, ...]:
    """The needs of a request that only an engine can judge: its path, if that has no id, and sound."""
    return (*_fixed(path), AUDIO) if needs.audio else _fixed(path)


@lru_cache(maxsize=64)
def _fixed(path: str) -> tuple[str, ...]:
    return (path,) if allowed_methods(path) == ("POST",) and not response_of(path) else ()


class Absences:
    """Lacks of each group, by its application."""

    def __init__(self) -> None:
        self._of: dict[str, set[str]] = defaultdict(set)

    def note(self, app: str, what: str) -> None:
        """Remembers that a group lacks something."""
        self._of[app].add(what)

    def without(self, groups: tuple[GroupEntry, ...], engine_needs: Iterable[str]) -> tuple[GroupEntry, ...]:
        """The groups that are not known to lack any of this; all of them if each lacks some."""
        if not self._of:
            return groups
        wanted = frozenset(engine_needs)
        return tuple(one for one in groups if wanted.isdisjoint(self._of.get(one.app, ()))) or groups

    def forget(self, app: str) -> None:
        """Forgets what a group lacks: its engine may be another one."""
        self._of.pop(app, None)

    def keep(self, apps: Iterable[str]) -> None:
        """Forgets all other groups."""
        for app in self._of.keys() - frozenset(apps):
            del self._of[app]
