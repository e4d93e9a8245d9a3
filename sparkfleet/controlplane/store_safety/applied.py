"""Everything that is applied, once more as JSON in the run directory: the input of `sparkfleet restore --adopt`.

It lasts as long as what runs: until the head reboots.
"""

from __future__ import annotations

from pydantic import ValidationError

from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.store import Store
from sparkfleet.gateway.routing_table import KeyEntry
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value


class StandingEntry(Value):
    """Ladder position of one group."""

    deployment: str
    generation: int
    replica: int
    standing: Standing


class Applied(Value):
    """Deployments with their plans, positions of their groups, and keys (their hashes)."""

    deployments: tuple[Desired, ...] = ()
    standings: tuple[StandingEntry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()


def applied_in(store: Store) -> Applied:
    """Content of a store that must not be lost."""
    return Applied(
        deployments=tuple(store.deployments.desired().values()),
        standings=tuple(
            StandingEntry(deployment=name, generation=generation, replica=replica, standing=standing)
            for (name, generation, replica), standing in sorted(store.groups.standings().items())
        ),
        keys=store.keys.all(),
    )


def write_applied(paths: FleetPaths, applied: Applied) -> None:
    """Writes it. Raises OSError."""
    write_atomically(paths.applied, applied.for_disk().encode())


def read_applied(paths: FleetPaths) -> Applied | None:
    """The last one; None if there is none, or it cannot be read."""
    try:
        return Applied.model_validate_json(paths.applied.read_bytes())
    except (OSError, ValidationError):
        return None
