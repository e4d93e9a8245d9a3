"""Boots of the nodes."""

from __future__ import annotations

from sparkfleet.controlplane.state.tables.database import Database


class BootTable:
    """The boot id with which each node was seen last, also by an earlier controller."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def known(self) -> dict[str, str]:
        """Boot id by node."""
        return self._db.read("node boots", self._read)

    def _read(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT node, boot FROM node_boots").fetchall())

    def store(self, node: str, boot: str) -> None:
        """Replaces a node's boot id."""
        self._db.execute("INSERT OR REPLACE INTO node_boots VALUES (?, ?)", (node, boot))
