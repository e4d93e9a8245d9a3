"""Ladder positions of groups, and their unfinished starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.group.group_name import GroupKey
from sparkfleet.planner.report.carry_over import RunningGroup


class GroupTable:
    """Standings and starts by group, including groups of generations that are being replaced."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def standings(self) -> dict[GroupKey, Standing]:
        """Ladder position of each group; groups at the top of their ladder may be left out."""
        return dict(self._db.read("standings", self._read_standings))

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

    def keep_rungs(self, after: Desired, running: Sequence[RunningGroup]) -> None:
        """Stores the rung of each group that is carried over, if its position was dropped meanwhile."""
        known = self.standings()
        for one in running:
            key = (after.name, *one.member)
            if one.rung and key in after.groups and known.get(key, Standing()).rung != one.rung:
                self.set_standing(*key, Standing(rung=one.rung))

    def starts(self) -> dict[GroupKey, dict[str, str]]:
        """Unfinished starts: for each group the boot id of each node at the beginning, "" if it is not known."""
        return {group: dict(boots) for group, boots in self._db.read("starts", self._read_starts).items()}

    def _read_starts(self) -> dict[GroupKey, dict[str, str]]:
        rows = self._db.execute("SELECT name, generation, replica, node, boot FROM starts")
        found: dict[GroupKey, dict[str, str]] = {}
        for name, generation, replica, node, boot in rows:
            found.setdefault((name, generation, replica), {})[node] = boot
        return found

    def begin_start(self, group: GroupKey, boots: Mapping[str, str]) -> None:
        """Stores a start until `end_start`. For a start that has already begun only unknown boot ids are added.

        Args:
            boots: boot id of each node, "" if it is not known.
        """
        with self._db.transaction():
            self._db.executemany(
                "INSERT INTO starts VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name, generation, replica, node) DO UPDATE SET boot = excluded.boot WHERE boot = ''",
                [(*group, node, boot) for node, boot in boots.items()],
            )

    def end_start(self, group: GroupKey) -> None:
        """Removes a start: the group is ready, has failed, or is no longer to start."""
        self._db.execute("DELETE FROM starts WHERE name = ? AND generation = ? AND replica = ?", group)

    def end_starts(self, deployment: str | None = None) -> None:
        """Removes all starts, or those of one deployment."""
        self._db.execute("DELETE FROM starts WHERE ? IS NULL OR name = ?", (deployment, deployment))

    def forget(self, group: GroupKey) -> None:
        """Removes the ladder position and the start of a group that no longer exists."""
        with self._db.transaction():
            self.end_start(group)
            self._db.execute("DELETE FROM standings WHERE name = ? AND generation = ? AND replica = ?", group)
