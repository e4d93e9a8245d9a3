"""A picker without Ray Serve, for tests of the gateway alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry


class StaticPicker:
    """A fixed set of engines, one or more of each group."""

    def __init__(self, engines: Iterable[EngineEndpoint]) -> None:
        self._engines = tuple(engines)

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        """The first engine of the first group that has one that is not excluded."""
        known = (engine for group in groups for engine in self._engines if engine.app == group.app)
        return next((engine for engine in known if engine.url not in exclude), None)
