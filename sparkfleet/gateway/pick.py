"""Which engine takes a request: one small protocol, and a fake that always knows the same engines."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from sparkfleet.gateway.table import ModelEntry
from sparkfleet.values import Value


class Target(Value):
    """One group's engine."""

    url: str
    """`http://host:port`, without a path."""
    token: str = ""
    """Internal bearer token, see `keys.engine_token`; empty for an engine that asks for none."""
    group: str = ""
    """Name of the group, for the log."""


class Picker(Protocol):
    """Chooses among the groups that serve a model."""

    async def pick(self, model: ModelEntry, *, exclude: AbstractSet[str]) -> Target | None:
        """A group for one request, or None where there is none.

        Args:
            model: what is asked for; its state is `ready`.
            exclude: URLs that have failed this very request. Must not be returned.
        """
        ...


class StaticPicker:
    """Takes the engines of each model in turn. For tests, and for measuring the gateway alone."""

    def __init__(self, engines: dict[str, Sequence[Target]]) -> None:
        self._engines = {name: list(targets) for name, targets in engines.items()}
        self._turn = 0

    async def pick(self, model: ModelEntry, *, exclude: AbstractSet[str]) -> Target | None:
        """The next engine of this model that is not excluded."""
        targets = [target for target in self._engines.get(model.name, []) if target.url not in exclude]
        self._turn += 1
        return targets[self._turn % len(targets)] if targets else None
