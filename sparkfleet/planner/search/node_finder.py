"""Finds nodes for the groups of one variant, on what the ledger has left. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparkfleet.perf.memory.demand import fits
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import VariantCase
from sparkfleet.planner.place.fleet_map import Pool, SiteClass


class NodeFinder:
    """Nodes with room for the ranks of a variant.

    Args:
        case: the variant.
        ledger: the nodes' memory; unchanged after each call.
        pools: the nodes of each kind; filled while proposals are enumerated.
        runs_on: nodes of each group that runs now: they are preferred.
    """

    def __init__(
        self,
        case: VariantCase,
        ledger: MemoryLedger,
        pools: Mapping[SiteClass, Sequence[Pool]],
        runs_on: Sequence[tuple[str, ...]],
    ) -> None:
        self._case = case
        self._ledger = ledger
        self._pools = pools
        self._runs_on = runs_on

    def find(self, site: SiteClass, needs: Band, replica: int) -> tuple[str, ...] | None:
        """Nodes of this kind for one replica, `needs` bytes per rank; None if there are none."""
        prefer = self._runs_on[replica] if replica < len(self._runs_on) else ()
        for pool in sorted(self._pools[site], key=lambda pool: set(pool.nodes) != set(prefer)):
            nodes = self._ledger.place(pool, needs, prefer, edge=self._case.edge)
            if nodes is not None:
                return nodes
        return None

    def fits_on(self, nodes: Sequence[str], pool: Pool, needs: Band) -> bool:
        """True if these nodes have room for a group, and nodes of the pool's kind for all replicas."""
        here = all(fits(needs, self._ledger.room(name), edge=self._case.edge) != "no" for name in nodes)
        return here and self.fits_all(pool, needs)

    def fits_all(self, pool: Pool, needs: Band) -> bool:
        """True if all requested replicas fit on nodes of the pool's kind; always for one, which `find` has placed."""
        wanted = self._case.variant.replicas or 1
        return wanted == 1 or len(self._places(pool, needs)) == wanted

    def crowds(self, pool: Pool, needs: Band) -> bool:
        """True if groups would share nodes of the pool's kind while more nodes are empty: behind slower cables of the same
        switch, or, for replicas, with less memory."""
        places = self._places(pool, needs)
        used = {node for nodes in places for node in nodes}
        if len(used) == sum(map(len, places)) and not self._ledger.beside(used):
            return False
        wider = (
            pools
            for site, pools in self._pools.items()
            if _is_lesser(site, pool.site, memory=(self._case.variant.replicas or 1) > 1)
        )
        return any(
            self._empty(node for one in pools for node in one.nodes) > self._empty(used) for pools in wider
        )

    def _empty(self, nodes: Iterable[str]) -> int:
        """The number of nodes with nothing on them."""
        return sum(not self._ledger.beside((node,)) for node in set(nodes))

    def _places(self, pool: Pool, needs: Band) -> list[tuple[str, ...]]:
        """Nodes of the pool's kind for the requested replicas, as far as they have room; the ledger is unchanged."""
        name, wanted = self._case.spec.name, self._case.variant.replicas or 1
        placed: list[tuple[str, ...]] = []
        while len(placed) < wanted:
            found = (self._ledger.place(one, needs, edge=self._case.edge) for one in self._pools[pool.site])
            nodes = next((one for one in found if one is not None), None)
            if nodes is None:
                break
            self._ledger.put(name, nodes, needs.mid)
            placed.append(nodes)
        for nodes in placed:
            self._ledger.take_back(name, nodes, needs.mid)
        return placed


def _is_lesser(site: SiteClass, than: SiteClass, *, memory: bool) -> bool:
    """True if a kind of nodes differs from another one by slower cables, or, if `memory` counts, by less memory, alone."""
    cable = {"rails": than.rails, "latency_us": than.latency_us, "gb_per_s": than.gb_per_s}
    size = {"memory_total": than.memory_total} if memory else {}
    if site == than or site.model_copy(update={**cable, **size}) != than:
        return False
    slower = site.latency_us >= than.latency_us and site.gb_per_s <= than.gb_per_s
    return slower and site.memory_total <= than.memory_total
