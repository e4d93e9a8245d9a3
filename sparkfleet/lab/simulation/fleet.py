"""The simulated machines: nodes that boot and go away, and the engines on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.units import GIB

MEMORY = 119 * GIB
"""MemTotal of a Spark."""
SMALL_MEMORY = 59 * GIB
"""MemTotal of a Spark of 64 GB, by its nominal size."""
SYSTEM = 8 * GIB
"""Bytes of them that its system takes."""
LEASE_S = 120.0
"""An engine that no actor follows ends after this long, as `node_daemon` ends a rank (`START_LEASE_S`)."""


@lru_cache
def _answer(name: str, total: int, free: int, boots: int) -> NodeReport:
    return NodeReport(
        name=name, joined=True, memory_total=total, memory_available=free, boot=f"{name}-{boots}"
    )


@dataclass
class SimulatedNode:
    """One machine."""

    name: str
    small: bool = False
    """It has 64 GB."""
    boots: int = 1
    up: bool = True
    cut: bool = False
    """Its network is away; it goes on by itself."""
    slow_report: bool = False
    """Its memory and boot are not read in time."""
    hog: int = 0
    """Bytes that something else takes."""
    without_tool: bool = False
    """Its container tool is away: no engine starts there."""
    away_since: float | None = None
    """Since when Ray does not reach it; None while it does."""
    joined_since: float = 0.0
    """Since when Ray reaches it, or reached it last."""

    @property
    def memory(self) -> int:
        """MemTotal, bytes."""
        return SMALL_MEMORY if self.small else MEMORY

    @property
    def joined(self) -> bool:
        """True if Ray reaches it."""
        return self.up and not self.cut


@dataclass
class SimulatedEngine:
    """All ranks of one group at one rung."""

    group: GroupKey
    rung: int
    nodes: tuple[str, ...]
    needs: int
    """Bytes on each node."""
    began_at: float = 0.0
    """Moment at which its start began, simulated seconds."""
    ready: bool = False
    ready_at: float = 0.0
    """Moment at which it became ready, simulated seconds."""
    hurt: str = ""
    """The injected fault it suffers; "" if it is well."""
    unfollowed_since: float | None = None
    """Since when no actor follows it; None while one does."""


@dataclass
class SimulatedFleet:
    """Nodes and engines.

    Args:
        names: of the nodes; the first one is the head until it is moved.
        time: the simulated clock.
        small: nodes with 64 GB; the others have 128.
    """

    names: tuple[str, ...]
    time: Timeline
    small: tuple[str, ...] = ()
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    engines: dict[GroupKey, SimulatedEngine] = field(default_factory=dict)
    ended: list[tuple[float, SimulatedEngine, str]] = field(default_factory=list)
    """Engines that have ended, when, and what ended them."""
    head_name: str = ""
    """The node that the head was moved to; "": it was not moved."""

    def __post_init__(self) -> None:
        self.nodes = {name: SimulatedNode(name, small=name in self.small) for name in self.names}

    @property
    def head(self) -> SimulatedNode:
        """The node of the controller."""
        return self.nodes[self.head_name or self.names[0]]

    @property
    def others(self) -> list[SimulatedNode]:
        """All nodes but the head."""
        return [node for node in self.nodes.values() if node is not self.head]

    def free(self, name: str) -> int:
        """MemAvailable of a node, bytes."""
        used = sum(one.needs for one in self.engines.values() if name in one.nodes)
        node = self.nodes[name]
        return max(0, node.memory - SYSTEM - used - node.hog)

    def end(self, group: GroupKey, why: str) -> None:
        """End an engine, if it is there."""
        engine = self.engines.pop(group, None)
        if engine is not None:
            self.ended.append((self.time.seconds, engine, why))

    def power_off(self, name: str) -> None:
        """Everything on the node is gone, and every group that has a rank there."""
        self.nodes[name].up = False
        for group in [group for group, one in self.engines.items() if name in one.nodes]:
            self.end(group, f"power of {name}")

    def power_on(self, name: str) -> None:
        """The node is there in another boot."""
        node = self.nodes[name]
        node.up, node.boots = True, node.boots + 1

    def end_unfollowed(self) -> None:
        """Ranks whose lease is over end by themselves."""
        now = self.time.seconds
        for group, engine in list(self.engines.items()):
            if engine.unfollowed_since is not None and now - engine.unfollowed_since > LEASE_S:
                self.end(group, "its lease")

    def note_away(self) -> None:
        """Keep since when each node is not reached."""
        for node in self.nodes.values():
            if node.joined and node.away_since is not None:
                node.away_since, node.joined_since = None, self.time.seconds
            elif node.joined:
                continue
            elif node.away_since is None:
                node.away_since = self.time.seconds

    def report(self, node: SimulatedNode) -> NodeReport:
        """The node as the controller sees it."""
        if not node.joined:
            return NodeReport(name=node.name, joined=False)
        if node.slow_report:
            return NodeReport(name=node.name, joined=True)
        return _answer(node.name, node.memory, self.free(node.name), node.boots)

    def sweep(
        self, names: Collection[str], keep: frozenset[GroupKey], newest: Mapping[str, int]
    ) -> tuple[str, ...]:
        """End ranks of other groups on those of these nodes that answer, with the rest of their group. `newest`: see
        `SweepList`."""
        gone = [
            group
            for group, one in self.engines.items()
            if group not in keep
            and group[1] <= newest.get(group[0], 0)
            and not set(one.nodes).isdisjoint(names)
            and all(self.nodes[name].joined for name in one.nodes)
        ]
        for group in gone:
            self.end(group, "swept")
        return tuple(map(str, gone))
