"""Desired state, keys and events in one SQLite file on the head node. One writer: the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.tables.bench_table import BenchTable
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.controlplane.state.tables.deployments import DeploymentTable
from sparkfleet.controlplane.state.tables.draft_hours import DraftHours
from sparkfleet.controlplane.state.tables.drains import DrainTable
from sparkfleet.controlplane.state.tables.events import KEEP_EVENTS, EventTable
from sparkfleet.controlplane.state.tables.failures import FailureTable
from sparkfleet.controlplane.state.tables.groups import GroupTable
from sparkfleet.controlplane.state.tables.keys import KeyTable
from sparkfleet.controlplane.state.tables.node_boots import BootTable
from sparkfleet.controlplane.state.tables.usage_ledger import UsageLedger
from sparkfleet.gateway.routing_table import KeyEntry


class Store(Database):
    """The database with its tables, which share its transactions: see `together`.

    Args:
        path: the database file; created if it is missing, in a directory of mode 0700.
        keep_events: number of newest events that are kept.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        keep_events: int = KEEP_EVENTS,
    ) -> None:
        super().__init__(path, clock)
        self.events = EventTable(self, keep_events)
        self.groups = GroupTable(self)
        self.failures = FailureTable(self)
        self.deployments = DeploymentTable(self, self.groups, self.events)
        self.drains = DrainTable(self)
        self.boots = BootTable(self)
        self.keys = KeyTable(self)
        self.usage = UsageLedger(self)
        self.drafts = DraftHours(self)
        self.bench = BenchTable(self)

    def adopt(self, deployments: Iterable[Desired], keys: Iterable[KeyEntry]) -> None:
        """Replaces all deployments and keys by these, with their generations as they are, in one transaction."""
        with self.changing():
            self.deployments.replace_all(deployments)
            self.keys.replace_all(keys)
