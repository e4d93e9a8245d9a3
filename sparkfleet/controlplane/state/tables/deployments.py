"""Deployments as they are desired, and their kept generations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from sparkfleet.controlplane.sealing import has_open_values, may_have_open_values, sealed
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.newer_generations import outdated
from sparkfleet.controlplane.state.store_rows import desired_of, desired_row, documents
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.controlplane.state.tables.events import EventTable
from sparkfleet.controlplane.state.tables.groups import GroupTable
from sparkfleet.errors import ControlError
from sparkfleet.group.group_name import name_of
from sparkfleet.planner.report.carry_over import CarriedOver, RunningGroup, carried_over
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.deployment import Deployment

KEEP_GENERATIONS = 50
"""Generations of a deployment that are kept for `history` and `rollback`: each is some 10 to 100 KB of plan."""
KEEP_DELETED = 200
"""Generations of all deleted deployments together that are kept beside the last one of each."""

_READ = "SELECT spec, plan, generation, who, since, members FROM deployments ORDER BY name"
_READ_HISTORY = (
    "SELECT spec, plan, generation, who, since, members FROM history WHERE name = ? ORDER BY generation"
)
_READ_GENERATION = """
SELECT spec, plan, generation, who, since, members FROM history WHERE name = ? AND generation = ? UNION ALL
SELECT spec, plan, generation, who, since, members FROM deployments WHERE name = ? AND generation = ?
"""
_READ_LAST = """
SELECT spec, plan, generation, who, since, members FROM history WHERE name = ? ORDER BY generation DESC
"""
_READ_SPECS = """
SELECT name, generation, spec FROM history UNION ALL SELECT name, generation, spec FROM deployments
"""
_LAST_OF_DELETED = """
SELECT name, max(generation) FROM history WHERE name NOT IN (SELECT name FROM deployments) GROUP BY name ORDER BY name
"""
_FORGET_OF_DELETED = """
WITH deleted AS (SELECT name, generation, since FROM history WHERE name NOT IN (SELECT name FROM deployments))
DELETE FROM history WHERE (name, generation) IN (SELECT name, generation FROM deleted)
AND (name, generation) NOT IN (SELECT name, max(generation) FROM deleted GROUP BY name)
AND (name, generation) NOT IN (SELECT name, generation FROM deleted ORDER BY since DESC LIMIT ?)
"""
_PUT = """
INSERT OR REPLACE INTO deployments (spec, plan, generation, who, since, members, name) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_PUT_HISTORY = """
INSERT OR REPLACE INTO history (spec, plan, generation, who, since, members, name) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SEAL = "UPDATE deployments SET spec = ?, plan = ? WHERE name = ? AND generation = ?"
_SEAL_HISTORY = "UPDATE history SET spec = ?, plan = ? WHERE name = ? AND generation = ?"
_RAISE = (
    "INSERT INTO generations VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET last = max(last, excluded.last)"
)


class DeploymentTable:
    """Desired deployments, their history, and the last generation of each name."""

    def __init__(self, database: Database, groups: GroupTable, events: EventTable) -> None:
        self._db = database
        self._groups = groups
        self._events = events
        self._stopped: dict[tuple[str, int], Desired | None] = {}
        """Last generations of deleted deployments, as read before: a stored generation does not change."""

    def desired(self) -> dict[str, Desired]:
        """Desired state of every deployment, by name."""
        return dict(self._db.parse("desired", self._read_desired))

    def _read_desired(self) -> dict[str, Desired]:
        rows = self._db.execute(_READ)
        return {desired.name: desired for desired in map(desired_of, rows)}

    def with_kv_on_disk(self) -> frozenset[str]:
        """Names of the applied deployments that keep KV on the disk, loaded or not."""
        return frozenset(name for name, one in self.desired().items() if one.spec.kv_disk is not None)

    def generations(self) -> dict[str, int]:
        """Newest generation ever given to each name, also of deleted deployments."""
        return dict(self._db.read("generations", self._read_generations))

    def _read_generations(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT name, last FROM generations"))

    def raise_generations(self, least: Mapping[str, int]) -> None:
        """Lets new generations of these names begin above these numbers."""
        with self._db.transaction():
            self._db.executemany(_RAISE, list(least.items()))

    def put(
        self,
        spec: Deployment,
        plan: DeploymentPlan,
        who: str,
        retry: bool = False,
        older: Sequence[RunningGroup] = (),
        *,
        base: int | None = None,
    ) -> tuple[Desired, bool]:
        """Stores a deployment. An equal one stays unchanged, unless a group of it is given up.

        Groups whose engine would get the same command are carried over: they go on under their names. With `retry` none is:
        all start at the top of their ladders.

        Returns the desired state, and True if it changed. A generation number is never used twice for one name, not even
        after a delete, so that a process of an old generation can be distinguished from a new one.

        Args:
            retry: start every group again.
            older: groups that still run and are no longer desired.
            base: the generation that the plan was made from; 0: there was none; None: not known, and not checked.

        Raises:
            OvertakenError: another generation was stored since, and this one differs from it.
        """
        before = self.desired().get(spec.name)
        running = [] if retry else [*self.running(before), *older]
        found = carried_over(plan, running)
        if before is not None and before.spec == spec and found.kept == tuple(g[1:] for g in before.groups):
            return before, False
        if base is not None and base != (before.generation if before else 0):
            deleted = self._events.last_deletion(spec.name)
            raise outdated(spec.name, base, before, self.history(spec.name), deleted)
        self._db.forget_read()
        with self._db.changing():
            after = self._next(spec, found, who)
            self._write(after)
            self._groups.keep_rungs(after, running)
        return after, True

    def _next(self, spec: Deployment, found: CarriedOver, who: str) -> Desired:
        """The deployment as its next generation."""
        row = self._db.execute("SELECT last FROM generations WHERE name = ?", (spec.name,)).fetchone()
        generation = (row[0] if row else 0) + 1
        self._db.execute("INSERT OR REPLACE INTO generations VALUES (?, ?)", (spec.name, generation))
        members = tuple(member or (generation, index) for index, member in enumerate(found.kept))
        return Desired(
            spec=spec, plan=found.plan, generation=generation, who=who, since=self._db.now(), members=members
        )

    def _write(self, one: Desired) -> None:
        row = desired_row(one)
        self._db.execute(_PUT, row)
        self._db.execute(_PUT_HISTORY, row)
        self._db.execute(
            "DELETE FROM history WHERE name = ? AND generation <= ?",
            (one.name, one.generation - KEEP_GENERATIONS),
        )

    def replace_all(self, deployments: Iterable[Desired]) -> None:
        """Replaces all deployments by these, with their generations as they are. To be called in a change."""
        self._db.forget_read()
        self._stopped = {}
        self._db.execute("DELETE FROM deployments")
        self._groups.end_starts()
        for one in deployments:
            self._write(one)
            self._db.execute(_RAISE, (one.name, one.generation))

    def remove(self, name: str) -> bool:
        """Deletes a deployment, with the starts of its groups; False if it does not exist."""
        self._db.forget_read()
        with self._db.changing():
            self._groups.end_starts(name)
            found = self._db.execute("DELETE FROM deployments WHERE name = ?", (name,)).rowcount > 0
            self._db.execute(_FORGET_OF_DELETED, (KEEP_DELETED,))
        return found

    def running(self, desired: Desired | None) -> list[RunningGroup]:
        """The groups of a deployment that are not given up, each at its rung."""
        if desired is None:
            return []
        at = self._groups.standings()
        return [
            RunningGroup(member=key[1:], plan=plan, rung=at.get(key, Standing()).rung)
            for key, plan in desired.planned()
            if not at.get(key, Standing()).given_up
        ]

    def history(self, name: str) -> tuple[Desired, ...]:
        """The last `KEEP_GENERATIONS` generations of a deployment, oldest first, also after a delete.

        Of all deleted ones together `KEEP_DELETED` are kept, and the last one of each. Those are left out that a newer
        release stored, with fields that this one does not know.
        """
        return self._db.parse(f"history of {name}", lambda: self._read_history(name))

    def _read_history(self, name: str) -> tuple[Desired, ...]:
        rows = self._db.execute(_READ_HISTORY, (name,))
        return tuple(one for row in rows if (one := _readable(row)) is not None)

    def last_served(self, desired: Desired) -> Desired | None:
        """The newest generation before this one, since it was last deleted, of which every group has served; None if none is
        kept, with its events."""
        ready = self._events.subjects(desired.name, "ready")
        return next(
            (
                one
                for one in reversed(self.history(desired.name))
                if one.generation < desired.generation and ready.issuperset(map(name_of, one.groups))
            ),
            None,
        )

    def stopped(self) -> tuple[Desired, ...]:
        """The last generation of each deployment that was deleted, by name, as far as it is kept."""
        last = [(str(name), int(generation)) for name, generation in self._db.execute(_LAST_OF_DELETED)]
        self._stopped = {
            one: self._stopped[one] if one in self._stopped else self._last_readable(one[0]) for one in last
        }
        return tuple(one for one in self._stopped.values() if one is not None)

    def _last_readable(self, name: str) -> Desired | None:
        """The last generation that this release knows; only what is before it is read."""
        rows = self._db.execute(_READ_LAST, (name,))
        return next((one for row in rows if (one := _readable(row)) is not None), None)

    def seal(self, sealer: EnvSealer) -> None:
        """Seals the environment variables that an older release stored as they are; overwrites them on the disk.

        A generation with a value of another fleet stays as it is: the start of its engine reports that.

        Plans are long (16 ms for 100 KB), and this runs at each start of a controller: those of generations without such a
        value are not read. Each generation is a change of its own, so that a start that is ended early is not in vain.
        """
        rows = self._db.execute(_READ_SPECS)
        opened = {(name, generation) for name, generation, spec in rows if may_have_open_values(spec)}
        if not opened:
            return
        self._db.execute("PRAGMA secure_delete=ON")
        self._stopped = {}
        for name, generation in sorted(opened):
            row = self._db.execute(_READ_GENERATION, (name, generation) * 2).fetchone()
            if (one := _readable(row)) is not None and has_open_values(one.spec):
                with suppress(ControlError):
                    self._seal(one, sealer)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _seal(self, one: Desired, sealer: EnvSealer) -> None:
        found = (*documents(*sealed(one.spec, one.plan, sealer)), one.name, one.generation)
        self._db.forget_read()
        with self._db.changing():
            self._db.execute(_SEAL, found)
            self._db.execute(_SEAL_HISTORY, found)


def _readable(row: tuple[Any, ...]) -> Desired | None:
    try:
        return desired_of(row)
    except ValidationError:
        return None
