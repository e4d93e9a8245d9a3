"""The engine of each group without Ray Serve, for measurements in which the look-up of an engine has no part."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry


class FixedPicker:
    """Picks given engines by their groups."""

    def __init__(self, engines: Sequence[EngineEndpoint]) -> None:
        self._engines = {engine.app: engine for engine in engines}

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        """The engine of the first group whose engine is not excluded."""
        found = (self._engines[group.app] for group in groups)
        return next((engine for engine in found if engine.url not in exclude), None)
