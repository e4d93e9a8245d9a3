"""Memory and engines of the simulated nodes at the moment at which a controller reads them, for the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet


@dataclass(frozen=True)
class MemoryLook:
    """The nodes' memory and engines at one moment."""

    at: float
    free: Mapping[str, int]
    """Bytes, by node."""
    engines: Mapping[GroupKey, SimulatedEngine]
    ending: frozenset[GroupKey]
    """Groups that are being retired."""
    adopted: frozenset[GroupKey]
    """Groups whose engine an actor found running."""
    unplaced: bool
    """True if a group is about to start, or has not finished its start."""

    def engines_of(self, deployment: str) -> list[SimulatedEngine]:
        """Engines of all its groups."""
        return [one for key, one in self.engines.items() if key[0] == deployment]


def memory_look(fleet: SimulatedFleet, apps: Mapping[GroupKey, SimulatedApp]) -> MemoryLook:
    """The present one."""
    return MemoryLook(
        at=fleet.time.seconds,
        free={name: fleet.free(name) for name in fleet.names},
        engines=dict(fleet.engines),
        ending=frozenset(key for key, app in apps.items() if app.status == "retiring"),
        adopted=frozenset(key for key, app in apps.items() if app.report is not None and app.report.adopted),
        unplaced=any(
            app.status != "retiring" and (key not in fleet.engines or not fleet.engines[key].ready)
            for key, app in apps.items()
        ),
    )


def held_by(
    engines: Mapping[GroupKey, SimulatedEngine], node: str, counts: Callable[[GroupKey], bool]
) -> int:
    """Bytes that the engines of some groups take on a node."""
    return sum(one.needs for key, one in engines.items() if node in one.nodes and counts(key))
