"""The view's memory: the last answer of the controller, the last values of each node, and the speeds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.controlplane.state.store import Event
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments import FleetCondition, FleetOverview
from sparkfleet.fleet.report.speeds import SpeedHistory
from sparkfleet.fleet.watch import PASSING
from sparkfleet.group.report import GroupReport


class ViewItem(NamedTuple):
    """A line that can be chosen: a group, or a deployment that has none."""

    deployment: DeploymentStatus
    group: GroupReport | None

    @property
    def name(self) -> str:
        """The group's name, or the deployment's."""
        return self.group.name if self.group else self.deployment.name


class LastValues(NamedTuple):
    """A node as it was when its memory was last read."""

    at: float
    report: NodeReport


class ViewMemory:
    """Everything that the view shows; what does not answer any more keeps its last values with their age."""

    def __init__(self, fleet: str) -> None:
        self.fleet = fleet
        self.status: FleetStatus | None = None
        """Last answer of the controller; None before the first."""
        self.recent: tuple[Event, ...] = ()
        self.answered_at: float | None = None
        self.trouble = ""
        self.speeds = SpeedHistory()
        self.nodes: dict[str, LastValues] = {}

    def take(self, found: FleetOverview, at: float) -> None:
        """Takes a reading. `at`: Unix seconds."""
        if not found.up:
            self.trouble = _trouble(found)
            return
        self.status, self.answered_at, self.trouble = found.status, at, found.status.trouble
        self.recent = tuple(event for event in found.recent if event.kind not in PASSING)
        self.speeds.see(at, {item.name: item.group.tokens for item in self.items() if item.group})
        known = {node.name for node in found.status.nodes}
        self.nodes = {name: last for name, last in self.nodes.items() if name in known}
        for node in found.status.nodes:
            if node.joined and node.memory_available is not None:
                self.nodes[node.name] = LastValues(at, node)

    def fail(self, error: SparkfleetError) -> None:
        """Takes an error in place of a reading."""
        self.trouble = " ".join(part for part in (error.what, error.do) if part)

    def items(self) -> Iterator[ViewItem]:
        """The groups, and the deployments that have none, in the controller's order."""
        for deployment in self.status.deployments if self.status else ():
            for group in deployment.groups or (None,):
                yield ViewItem(deployment, group)

    def find(self, name: str) -> ViewItem | None:
        """An item by its name; None if it is gone."""
        return next((item for item in self.items() if item.name == name), None)


def _trouble(found: FleetOverview) -> str:
    if found.condition is FleetCondition.DOWN:
        return f"Fleet {found.status.fleet} is down. `sparkfleet up` starts it."
    error = found.trouble
    parts = (error.what, error.do) if error else (f"Fleet {found.status.fleet}: {found.condition.value}.",)
    return " ".join(part for part in parts if part)
