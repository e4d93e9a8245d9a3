"""Desired state, keys, events and measurements in one SQLite file on the head node. One writer: the controller."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkfleet.controlplane.desired import Desired, GroupKey, Standing
from sparkfleet.controlplane.sealing import has_open_values, sealed
from sparkfleet.controlplane.state import usage_ledger
from sparkfleet.controlplane.state.newer_generations import outdated, when
from sparkfleet.controlplane.state.schema import migrate
from sparkfleet.controlplane.state.status import DrainedGroup, DrainedNode
from sparkfleet.controlplane.state.store_rows import (
    Event,
    Measurement,
    StoreIdentity,
    desired_of,
    desired_row,
    documents,
    event_of,
    key_of,
    key_row,
    key_settings,
)
from sparkfleet.controlplane.state.usage_ledger import UsageRow
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import KeyUsage
from sparkfleet.gateway.routing_table import KeyEntry
from sparkfleet.planner.report.carry_over import CarriedOver, RunningGroup, carried_over
from sparkfleet.planner.rules.failure_memory import Remembered
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.deployment import Deployment

T = TypeVar("T")

KEEP_EVENTS = 10_000
KEEP_PROGRESS = 1000
"""Events kept of the progress of starts: the load of one large model writes a thousand, and must not push out the reason
for another one's failure."""

KEEP_MEASUREMENTS = 1000
"""Measurements kept of a deployment: at up to six per start those of its last 160 starts or more, in about 100 KB."""


USED_S = 60.0
"""The last use of a key is stored to the minute: each write costs the head's disk 4 ms."""

KEEP_GENERATIONS = 50
"""Generations of a deployment that are kept for `history` and `rollback`: each is some 10 to 100 KB of plan."""


class Store:
    """The database. Not thread-safe: the controller calls it from its event loop only.

    Every write is on the disk when the call returns (about 4 ms each on an ordinary disk).

    Args:
        path: the database file; created if it is missing, in a directory of mode 0700.
        clock: Unix seconds, replaceable in tests.
        keep_events: number of newest events that are kept.
        keep_measurements: number of newest measurements of each deployment that are kept.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        keep_events: int = KEEP_EVENTS,
        keep_measurements: int = KEEP_MEASUREMENTS,
    ) -> None:
        self.path = path
        """The database file."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._clock = clock
        self._keep_events = keep_events
        self._keep_measurements = keep_measurements
        self._desired: dict[str, Desired] | None = None
        self._histories: dict[str, tuple[Desired, ...]] = {}
        """As read from the file last; None after a change. Nothing else writes the file."""
        self._kept: dict[str, tuple[int, Any]] = {}
        """Further answers as read last, each with the number of writes until then."""
        self._changes = 0
        """Changes since it was opened."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of the desired state or the keys, once it is on the disk."""
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._transaction():
                migrate(self._db)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def identity(self) -> StoreIdentity:
        """Its identity."""
        return self._read("identity", self._read_identity)

    def _read_identity(self) -> StoreIdentity:
        id_, fleet, changes = self._db.execute("SELECT id, fleet, changes FROM identity").fetchone()
        return StoreIdentity(id=id_, fleet=fleet, changes=changes)

    def identify(self, identity: StoreIdentity) -> None:
        """Replaces its identity."""
        self._db.execute(
            "UPDATE identity SET id = ?, fleet = ?, changes = ?",
            (identity.id, identity.fleet, identity.changes),
        )

    def generations(self) -> dict[str, int]:
        """Newest generation ever given to each name, also of deleted deployments."""
        return dict(self._read("generations", self._read_generations))

    def _read_generations(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT name, last FROM generations"))

    def raise_generations(self, least: Mapping[str, int]) -> None:
        """Lets new generations of these names begin above these numbers."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO generations VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET last = max(last, excluded.last)",
                list(least.items()),
            )

    def adopt(self, deployments: Iterable[Desired], keys: Iterable[KeyEntry]) -> None:
        """Replaces all deployments and keys by these, with their generations as they are."""
        self._forget_read()
        with self._changing():
            for table in ("deployments", "starts", "keys"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608  # the names are the three above
            for one in deployments:
                self._write_deployment(one)
                self._db.execute(
                    "INSERT INTO generations VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET last = max(last, excluded.last)",
                    (one.name, one.generation),
                )
            self._db.executemany(
                _ADD_KEY,
                [key_row(key, self._clock()) for key in keys],
            )

    @property
    def writes(self) -> int:
        """Rows written since it was opened; equal numbers mean that nothing was written between."""
        return self._db.total_changes

    def _read(self, name: str, read: Callable[[], T]) -> T:
        """The answer of `read`, kept until something is written: a round of the controller reads each several times.

        Nothing is kept in a transaction, because what it wrote may be taken back.
        """
        if self._db.in_transaction:
            return read()
        writes = self.writes
        if (known := self._kept.get(name)) is None or known[0] != writes:
            known = self._kept[name] = (writes, read())
        found: T = known[1]
        return found

    def desired(self) -> dict[str, Desired]:
        """Desired state of every deployment, by name."""
        if self._desired is None:
            rows = self._db.execute(
                "SELECT spec, plan, generation, who, since, members FROM deployments ORDER BY name"
            )
            self._desired = {desired.name: desired for desired in map(desired_of, rows)}
        return dict(self._desired)

    def _forget_read(self) -> None:
        """Lets deployments be read again: they are kept, because a round of the controller reads them several times."""
        self._desired, self._histories = None, {}
        self._kept = {}

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
            spec: the deployment.
            plan: its plan.
            who: the person or program that applied it.
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
            raise outdated(spec.name, base, before, self.history(spec.name), self._deletion_of(spec.name))
        self._forget_read()
        with self._changing():
            after = self._next(spec, found, who)
            self._write_deployment(after)
            self._keep_rungs(after, running)
        return after, True

    def seal(self, sealer: EnvSealer) -> None:
        """Seals the environment variables that an older release stored as they are; overwrites them on the disk.

        A generation with a value of another fleet stays as it is: the start of its engine reports that.
        """
        rows = [*self.desired().values(), *(one for name in self.generations() for one in self.history(name))]
        opened = [one for one in rows if has_open_values(one.spec)]
        if not opened:
            return
        self._db.execute("PRAGMA secure_delete=ON")
        self._forget_read()
        with self._changing():
            for one in opened:
                with suppress(ControlError):
                    found = (*documents(*sealed(one.spec, one.plan, sealer)), one.name, one.generation)
                    self._db.execute(SEAL, found)
                    self._db.execute(SEAL_HISTORY, found)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _deletion_of(self, name: str) -> str:
        """The last deletion of a deployment, for people; "" if none is kept."""
        row = self._db.execute(
            "SELECT message, at FROM events WHERE deployment = ? AND kind = 'unwanted' ORDER BY id DESC LIMIT 1",
            (name,),
        ).fetchone()
        return f"{row[0]}, {when(row[1])}" if row else ""

    def running(self, desired: Desired | None) -> list[RunningGroup]:
        """The groups of a deployment that are not given up, each at its rung."""
        if desired is None:
            return []
        at = self.standings()
        return [
            RunningGroup(member=key[1:], plan=plan, rung=at.get(key, Standing()).rung)
            for key, plan in zip(desired.groups, desired.plan.groups, strict=True)
            if not at.get(key, Standing()).given_up
        ]

    def history(self, name: str) -> tuple[Desired, ...]:
        """The last `KEEP_GENERATIONS` generations of a deployment, oldest first, also after a delete.

        Those are left out that a newer release stored, with fields that this one does not know.
        """
        if name not in self._histories:
            rows = self._db.execute(
                "SELECT spec, plan, generation, who, since, members FROM history WHERE name = ? ORDER BY generation",
                (name,),
            )
            self._histories[name] = tuple(one for row in rows if (one := _readable(row)) is not None)
        return self._histories[name]

    def stopped(self) -> tuple[Desired, ...]:
        """The last generation of each deployment that was deleted, by name, as far as it is kept."""
        names = self._db.execute(
            "SELECT DISTINCT name FROM history WHERE name NOT IN (SELECT name FROM deployments) ORDER BY name"
        ).fetchall()
        return tuple(history[-1] for (name,) in names if (history := self.history(name)))

    def _next(self, spec: Deployment, found: CarriedOver, who: str) -> Desired:
        """The deployment as its next generation."""
        row = self._db.execute("SELECT last FROM generations WHERE name = ?", (spec.name,)).fetchone()
        generation = (row[0] if row else 0) + 1
        self._db.execute("INSERT OR REPLACE INTO generations VALUES (?, ?)", (spec.name, generation))
        members = tuple(member or (generation, index) for index, member in enumerate(found.kept))
        return Desired(
            spec=spec, plan=found.plan, generation=generation, who=who, since=self._clock(), members=members
        )

    def _keep_rungs(self, after: Desired, running: Sequence[RunningGroup]) -> None:
        """Stores the rung of each group that is carried over, if its position was dropped meanwhile."""
        known = self.standings()
        for one in running:
            key = (after.name, *one.member)
            if one.rung and key in after.groups and known.get(key, Standing()).rung != one.rung:
                self._db.execute(
                    "INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?)",
                    (*key, Standing(rung=one.rung).for_disk()),
                )

    def _write_deployment(self, one: Desired) -> None:
        row = desired_row(one)
        self._db.execute(PUT, row)
        self._db.execute(PUT_HISTORY, row)
        self._db.execute(
            "DELETE FROM history WHERE name = ? AND generation <= ?",
            (one.name, one.generation - KEEP_GENERATIONS),
        )

    def remove(self, name: str) -> bool:
        """Deletes a deployment; False if it does not exist."""
        self._forget_read()
        with self._changing():
            self._db.execute("DELETE FROM starts WHERE name = ?", (name,))
            return self._db.execute("DELETE FROM deployments WHERE name = ?", (name,)).rowcount > 0

    def drained(self) -> tuple[DrainedNode, ...]:
        """Nodes on which nothing is to be started, the first one first."""
        return self._read("drained", self._read_drained)

    def _read_drained(self) -> tuple[DrainedNode, ...]:
        rows = self._db.execute("SELECT node, who, since FROM drained ORDER BY since, node")
        return tuple(DrainedNode(node=node, who=who, since=since) for node, who, since in rows)

    def drain(self, node: str, who: str) -> bool:
        """Stores that nothing is to be started on a node; False if that is stored already."""
        with self._changing():
            return (
                self._db.execute(
                    "INSERT OR IGNORE INTO drained VALUES (?, ?, ?)", (node, who, self._clock())
                ).rowcount
                > 0
            )

    def undrain(self, node: str) -> bool:
        """Takes that back; False if it was not stored."""
        with self._changing():
            return self._db.execute("DELETE FROM drained WHERE node = ?", (node,)).rowcount > 0

    def drained_groups(self) -> tuple[DrainedGroup, ...]:
        """Groups that get no new requests, the first one first."""
        return self._read("drained groups", self._read_drained_groups)

    def _read_drained_groups(self) -> tuple[DrainedGroup, ...]:
        rows = self._db.execute(
            "SELECT name, generation, replica, who, since FROM drained_groups"
            " ORDER BY since, name, generation, replica"
        )
        return tuple(
            DrainedGroup(deployment=name, generation=generation, replica=replica, who=who, since=since)
            for name, generation, replica, who, since in rows
        )

    def drain_group(self, group: GroupKey, who: str) -> bool:
        """Stores that a group gets no new requests; False if that is stored already."""
        with self._changing():
            return (
                self._db.execute(
                    "INSERT OR IGNORE INTO drained_groups VALUES (?, ?, ?, ?, ?)",
                    (*group, who, self._clock()),
                ).rowcount
                > 0
            )

    def undrain_group(self, group: GroupKey) -> bool:
        """Takes that back; False if it was not stored."""
        with self._changing():
            return (
                self._db.execute(
                    "DELETE FROM drained_groups WHERE name = ? AND generation = ? AND replica = ?", group
                ).rowcount
                > 0
            )

    def keys(self) -> tuple[KeyEntry, ...]:
        """All API keys: names and hashes."""
        return tuple(key for key, _ in self.keys_created())

    def keys_created(self) -> tuple[tuple[KeyEntry, float], ...]:
        """All API keys with the time of their creation, Unix seconds."""
        return self._read("keys", self._read_keys)

    def _read_keys(self) -> tuple[tuple[KeyEntry, float], ...]:
        rows = self._db.execute("SELECT id, name, sha256, settings, since FROM keys ORDER BY since, id")
        return tuple((key_of(*row), since) for *row, since in rows)

    def keys_used(self) -> dict[str, float]:
        """Unix seconds of the last stored use of each key that was used, by its id."""
        return dict(self._db.execute("SELECT id, used FROM keys WHERE used IS NOT NULL"))

    def use_keys(self, used: Mapping[str, float]) -> None:
        """Stores the last use of keys, by their ids. Uses within `USED_S` of a stored one are not written."""
        known = self.keys_used()
        later = [(at, key) for key, at in used.items() if at - known.get(key, 0.0) >= USED_S]
        if later:
            self._db.executemany("UPDATE keys SET used = ? WHERE id = ?", later)

    def add_key(self, key: KeyEntry) -> bool:
        """Stores a key; False if the name is taken."""
        try:
            with self._changing():
                self._db.execute(_ADD_KEY, key_row(key, self._clock()))
        except sqlite3.IntegrityError:
            return False
        return True

    def add_usage(self, replica: str, totals: Iterable[KeyUsage]) -> None:
        """Adds what a gateway replica has counted since its last totals; writes nothing if that is nothing."""
        more = usage_ledger.changed(self._db, replica, totals)
        if more:
            with self._transaction():
                usage_ledger.add(self._db, replica, more, self._clock())

    def usage(self, days: int) -> tuple[UsageRow, ...]:
        """Usage of the last days by day, key and model."""
        return usage_ledger.read(self._db, days, self._clock())

    def change_key(self, key: KeyEntry) -> None:
        """Replaces the digest and the settings of a key with this id."""
        with self._changing():
            self._db.execute(
                "UPDATE keys SET sha256 = ?, settings = ? WHERE id = ?",
                (key.sha256, key_settings(key), key.id),
            )

    def key_named(self, name_or_id: str) -> KeyEntry | None:
        """A key by its name or id; None if there is none."""
        return next((key for key in self.keys() if name_or_id in (key.name, key.id)), None)

    def remove_key(self, name_or_id: str) -> KeyEntry | None:
        """Deletes a key by its name or id; None if there is none."""
        key = self.key_named(name_or_id)
        if key is not None:
            with self._changing():
                self._db.execute("DELETE FROM keys WHERE id = ?", (key.id,))
        return key

    def record(self, deployment: str, generation: int, subject: str, kind: str, message: str) -> Event:
        """Writes an event; the oldest beyond `keep_events` are dropped."""
        at = self._clock()
        cursor = self._db.execute(
            "INSERT INTO events (at, deployment, generation, subject, kind, message) VALUES (?, ?, ?, ?, ?, ?)",
            (at, deployment, generation, subject, kind, message),
        )
        assert cursor.lastrowid is not None
        self._db.execute("DELETE FROM events WHERE id <= ?", (cursor.lastrowid - self._keep_events,))
        if kind == "progress":
            self._db.execute(
                "DELETE FROM events WHERE kind = ? AND id <= ?", (kind, cursor.lastrowid - KEEP_PROGRESS)
            )
        return Event(
            id=cursor.lastrowid,
            at=at,
            deployment=deployment,
            generation=generation,
            subject=subject,
            kind=kind,
            message=message,
        )

    def events(self, after: int = 0, deployment: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Events with an id above `after`, oldest first."""
        rows = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events"
            " WHERE id > ? AND (? IS NULL OR deployment = ?) ORDER BY id LIMIT ?",
            (after, deployment, deployment, limit),
        )
        return tuple(map(event_of, rows))

    def events_since(self, subject: str, kind: str, at: float) -> tuple[Event, ...]:
        """Events of one kind about one subject after this moment (Unix seconds), oldest first."""
        rows = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events"
            " WHERE subject = ? AND kind = ? AND at > ? ORDER BY id",
            (subject, kind, at),
        )
        return tuple(map(event_of, rows))

    def last_event_id(self) -> int:
        """Id of the newest event, 0 if there is none."""
        row = self._db.execute("SELECT max(id) FROM events").fetchone()
        return row[0] or 0

    def measure(self, deployment: str, generation: int, subject: str, values: dict[str, float]) -> None:
        """Stores measurements of a group; the deployment's oldest beyond `keep_measurements` are dropped."""
        at = self._clock()
        with self._transaction():
            self._db.executemany(
                "INSERT INTO measurements (at, deployment, generation, subject, name, value)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(at, deployment, generation, subject, name, value) for name, value in values.items()],
            )
            self._db.execute(
                "DELETE FROM measurements WHERE deployment = ? AND id <= (SELECT id FROM measurements"
                " WHERE deployment = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (deployment, deployment, self._keep_measurements),
            )

    def measurements(self, deployment: str, generation: int | None = None) -> tuple[Measurement, ...]:
        """Measurements of a deployment, oldest first."""
        rows = self._db.execute(
            "SELECT at, deployment, generation, subject, name, value FROM measurements"
            " WHERE deployment = ? AND (? IS NULL OR generation = ?) ORDER BY id",
            (deployment, generation, generation),
        )
        return tuple(Measurement(**dict(zip(Measurement.model_fields, row, strict=True))) for row in rows)

    def rungs(self, deployment: str, generation: int) -> dict[int, Standing]:
        """Rung of each group, by replica; groups at the top of their ladder are left out."""
        rows = self._db.execute(
            "SELECT replica, standing FROM standings WHERE name = ? AND generation = ?",
            (deployment, generation),
        )
        return {replica: Standing.model_validate_json(standing) for replica, standing in rows}

    def standings(self) -> dict[GroupKey, Standing]:
        """Ladder position of each group, including generations that are being replaced."""
        return dict(self._read("standings", self._read_standings))

    def _read_standings(self) -> dict[GroupKey, Standing]:
        rows = self._db.execute("SELECT name, generation, replica, standing FROM standings")
        return {
            (name, generation, replica): Standing.model_validate_json(standing)
            for name, generation, replica, standing in rows
        }

    def set_standing(self, deployment: str, generation: int, replica: int, standing: Standing) -> None:
        """Stores a group's ladder position."""
        self._db.execute(
            "INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?)",
            (deployment, generation, replica, standing.for_disk()),
        )

    def starts(self) -> dict[GroupKey, dict[str, str]]:
        """Unfinished starts: for each group the boot id of each node at the beginning, "" if it is not known."""
        return {group: dict(boots) for group, boots in self._read("starts", self._read_starts).items()}

    def _read_starts(self) -> dict[GroupKey, dict[str, str]]:
        rows = self._db.execute("SELECT name, generation, replica, node, boot FROM starts")
        found: dict[GroupKey, dict[str, str]] = {}
        for name, generation, replica, node, boot in rows:
            found.setdefault((name, generation, replica), {})[node] = boot
        return found

    def begin_start(self, group: GroupKey, boots: Mapping[str, str]) -> None:
        """Stores a start until `end_start`. For a start that has already begun only unknown boot ids are added.

        Args:
            group: its key.
            boots: boot id of each node, "" if it is not known.
        """
        with self._transaction():
            self._db.executemany(
                "INSERT INTO starts VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name, generation, replica, node) DO UPDATE SET boot = excluded.boot WHERE boot = ''",
                [(*group, node, boot) for node, boot in boots.items()],
            )

    def end_start(self, group: GroupKey) -> None:
        """Removes a start: the group is ready, has failed, or is no longer to start."""
        self._db.execute("DELETE FROM starts WHERE name = ? AND generation = ? AND replica = ?", group)

    def forget_group(self, group: GroupKey) -> None:
        """Removes the ladder position and the start of a group that no longer exists."""
        with self._transaction():
            for table in ("standings", "starts"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE name = ? AND generation = ? AND replica = ?",  # noqa: S608  # not input
                    group,
                )

    def end_starts(self) -> None:
        """Removes all starts."""
        self._db.execute("DELETE FROM starts")

    def remember(self, fingerprint: str, words: str, lasts_s: float) -> None:
        """Stores a candidate that failed to start, for this many seconds; expired ones are dropped."""
        now = self._clock()
        self._db.execute("DELETE FROM failures WHERE until <= ?", (now,))
        until = None if math.isinf(lasts_s) else now + lasts_s
        self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", (fingerprint, words, until))

    def forget_failure(self, fingerprint: str) -> None:
        """Removes the failure of a candidate that has started."""
        self._db.execute("DELETE FROM failures WHERE fingerprint = ?", (fingerprint,))

    def failures(self) -> tuple[Remembered, ...]:
        """Candidates that failed to start on this fleet, oldest first."""
        rows = self._db.execute(
            "SELECT fingerprint, words, until FROM failures WHERE until IS NULL OR until > ? ORDER BY rowid",
            (self._clock(),),
        )
        return tuple(Remembered(fingerprint=one, words=words, until=until) for one, words, until in rows)

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction for a change and its event.

        On a full disk both are stored or neither: a command that failed has changed nothing. Nothing may be awaited inside,
        because all coroutines of a controller share the connection.
        """
        changes = self._changes
        with self._transaction():
            yield
        if self._changes != changes:
            self._changed()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of the desired state or the keys; a transaction of its own unless it is part of one."""
        outer = self._db.in_transaction
        with nullcontext() if outer else self._transaction():
            yield
            self._db.execute("UPDATE identity SET changes = changes + 1")
        self._changes += 1
        if not outer:
            self._changed()

    def _changed(self) -> None:
        """Moves the change from SQLite's log into the file itself, and announces it.

        The log is lost if the file is damaged or replaced for a moment and somebody opens it meanwhile: SQLite writes it
        into what it finds there. What is left in it are events and measurements.
        """
        with suppress(sqlite3.Error):  # a full disk: the change is in the log, and the next one moves both
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.on_change()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._forget_read()
            if self._db.in_transaction:  # on a full disk SQLite may already have ended it
                self._db.execute("ROLLBACK")
            raise


def _readable(row: tuple[Any, ...]) -> Desired | None:
    try:
        return desired_of(row)
    except ValidationError:
        return None


SEAL = "UPDATE deployments SET spec = ?, plan = ? WHERE name = ? AND generation = ?"
SEAL_HISTORY = "UPDATE history SET spec = ?, plan = ? WHERE name = ? AND generation = ?"
PUT = """
INSERT OR REPLACE INTO deployments (spec, plan, generation, who, since, members, name) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
PUT_HISTORY = """
INSERT OR REPLACE INTO history (spec, plan, generation, who, since, members, name) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_ADD_KEY = "INSERT INTO keys (id, name, sha256, settings, since) VALUES (?, ?, ?, ?, ?)"
