"""Nodes on which nothing is started, and groups that get no new requests."""

from __future__ import annotations

from sparkfleet.controlplane.state.drained import DrainedGroup, DrainedNode
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.group.group_name import GroupKey


class DrainTable:
    """Drained nodes and drained groups."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def nodes(self) -> tuple[DrainedNode, ...]:
        """Nodes on which nothing is to be started, the first one first."""
        return self._db.read("drained", self._read_nodes)

    def _read_nodes(self) -> tuple[DrainedNode, ...]:
        rows = self._db.execute("SELECT node, who, since FROM drained ORDER BY since, node")
        return tuple(DrainedNode(node=node, who=who, since=since) for node, who, since in rows)

    def drain(self, node: str, who: str) -> bool:
        """Stores that nothing is to be started on a node; False if that is stored already."""
        return self._change("INSERT OR IGNORE INTO drained VALUES (?, ?, ?)", node, who, self._db.now())

    def undrain(self, node: str) -> bool:
        """Takes that back; False if it was not stored."""
        return self._change("DELETE FROM drained WHERE node = ?", node)

    def groups(self) -> tuple[DrainedGroup, ...]:
        """Groups that get no new requests, the first one first."""
        return self._db.read("drained groups", self._read_groups)

    def _read_groups(self) -> tuple[DrainedGroup, ...]:
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
        row = (*group, who, self._db.now())
        return self._change("INSERT OR IGNORE INTO drained_groups VALUES (?, ?, ?, ?, ?)", *row)

    def undrain_group(self, group: GroupKey) -> bool:
        """Takes that back; False if it was not stored."""
        return self._change(
            "DELETE FROM drained_groups WHERE name = ? AND generation = ? AND replica = ?", *group
        )

    def _change(self, sql: str, *values: object) -> bool:
        """Runs a statement as a change; True if it changed a row."""
        with self._db.changing():
            return self._db.execute(sql, values).rowcount > 0
