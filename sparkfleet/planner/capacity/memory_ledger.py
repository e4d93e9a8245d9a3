"""Memory and declared ports of every node, and the placement of one more group. Pure: one run of the planner has one.

A rank is counted with the middle of its band; `memory.fits` is the verdict on whether a node has room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.hardware import hardware, memory_alike
from sparkfleet.perf.memory.demand import MemoryBudget, NodeMemory, fits
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.place.fleet_map import Fleet, Pool
from sparkfleet.planner.types.node_load import NodeLoad
from sparkfleet.units import GB, GIB

ALIKE = 2 * GIB
"""Difference of free memory between two idle Sparks that is noise, or the head's own processes."""


def _idle_bytes() -> float:
    """Memory of an idle Spark, the middle of the measurements; rounded up to a megabyte."""
    idle = hardware().boxes[0].memory_total_gb.value - hardware().memory.idle_available_gb.value
    return idle * GB + 1e6


class MemoryLedger:
    """Memory of all nodes of a fleet.

    Args:
        fleet: the nodes.
        held: bytes per node that groups will give back that are replaced.
        ports: declared ports by node and port, each with the deployment that has it, or the gateway.
        kept: bytes per node that are kept for groups that lose a node.
        spare: bytes of each node that are left for something that is not planned.
    """

    def __init__(
        self,
        fleet: Fleet,
        held: Mapping[str, int] | None = None,
        ports: Mapping[tuple[str, int | None], str] | None = None,
        kept: Mapping[str, int] | None = None,
        spare: int = 0,
    ) -> None:
        self.ports = dict(ports or {})
        self._fleet = fleet
        self._held = dict(held or {})
        self._kept = dict(kept or {})
        self._empty = {node.name: self._room(node) for node in fleet.nodes}
        self._placed: dict[str, list[tuple[str, int]]] = {node.name: [] for node in fleet.nodes}
        self._sums: dict[str, float] = dict.fromkeys(self._empty, float(spare))

    def _room(self, node: NodeFacts) -> MemoryBudget:
        free = min(node.memory.available + self._held.get(node.name, 0), node.memory.total)
        free = max(0, free - self._kept.get(node.name, 0))
        if node.gpu is None:
            return MemoryBudget(free, free)
        used: float | None = float(node.memory.total - free)
        if node.name in self._fleet.assumed and used is not None and used <= _idle_bytes():
            used = None  # what runs there is not known
        return NodeMemory(total=float(node.memory.total), used=used).room

    def room(self, name: str) -> MemoryBudget:
        """Memory left on a node."""
        empty, placed = self._empty[name], self._sums[name]
        return MemoryBudget(empty.careful - placed, empty.at_most - placed)

    def best(self, pool: Pool) -> MemoryBudget:
        """The room that all nodes of the best site of a pool have."""
        return min(nlargest(pool.site.ranks, map(self.room, pool.nodes)))

    def shared(self, nodes: Sequence[str]) -> MemoryBudget:
        """Memory left on each of these nodes."""
        return min(map(self.room, nodes))

    def emptiest(self, pool: Pool) -> tuple[str, MemoryBudget]:
        """The node of a pool that would have most room were nothing placed by this ledger, and that room."""
        name = max(pool.nodes, key=lambda name: self._empty[name])
        return name, self._empty[name]

    def place(
        self, pool: Pool, needs: Band, prefer: Sequence[str] = (), *, edge: bool = False
    ) -> tuple[str, ...] | None:
        """Nodes for one group: `prefer` if it has room, else those with the least on them; None if none have room.

        Nodes on which it fits come before those on which it is tight.

        Args:
            pool: the nodes that may be taken.
            needs: bytes of each rank.
            prefer: nodes on which it runs already.
            edge: on nodes with nothing on them the lower end of the band is enough (`memory.fits`).
        """
        rooms = [(name, self.room(name)) for name in pool.nodes if not edge or not self._placed[name]]
        for wanted in ("fits", "tight"):
            able = [
                (room.careful, name)
                for name, room in rooms
                if fits(needs, room, edge=edge) in ("fits", wanted)
            ]
            if len(able) < pool.site.ranks:
                continue
            names = [name for _, name in able]
            if len(prefer) == pool.site.ranks and set(prefer) <= set(names):
                return tuple(prefer)
            if len(pool.nodes) == pool.site.ranks:
                return pool.nodes
            # An empty node first: engines that share one share its bandwidth. Then the fullest that still has room; of
            # idle nodes, whose free memory differs by noise, the first of the inventory, so that groups are neighbours.
            held = {name: len(self._placed[name]) for name in names}
            least = {
                count: min(room for room, name in able if held[name] == count) for count in held.values()
            }
            able.sort(key=lambda item: (held[item[1]], (item[0] - least[held[item[1]]]) // ALIKE))
            chosen = self._of_one_size([name for _, name in able], pool.site.ranks, held)
            return tuple(name for name in pool.nodes if name in chosen)
        return None

    def _of_one_size(self, names: Sequence[str], ranks: int, held: Mapping[str, int]) -> Sequence[str]:
        """The first nodes for one group; nodes of one size if no more is on any of them."""
        first, totals = names[:ranks], self._fleet.totals
        most = max(held[name] for name in first)
        for name in names:
            alike = [one for one in names if memory_alike((totals[one], totals[name]))][:ranks]
            if len(alike) == ranks and max(held[one] for one in alike) <= most:
                return alike
        return first

    def put(self, deployment: str, nodes: Iterable[str], size: float) -> None:
        """Count a rank of `size` bytes on each of the nodes."""
        for name in nodes:
            self._placed[name].append((deployment, round(size)))
            self._sums[name] += size

    def take_back(self, deployment: str, nodes: Iterable[str], size: float) -> None:
        """Undo a `put`."""
        for name in nodes:
            self._placed[name].remove((deployment, round(size)))
            self._sums[name] -= size

    def beside(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Deployments that are on these nodes already."""
        return tuple(dict.fromkeys(name for node in nodes for name, _ in self._placed[node]))

    def loads(self) -> tuple[NodeLoad, ...]:
        """Placed memory, node by node."""
        return tuple(
            NodeLoad(
                node=node.name,
                total=node.memory.total,
                usable=round(max(0.0, self._empty[node.name].at_most)),
                placed=tuple(self._placed[node.name]),
                assumed=node.name in self._fleet.assumed,
            )
            for node in self._fleet.nodes
        )
