"""Finds nodes for the groups of one variant, on what the ledger has left. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        """True if replicas would share nodes of the pool's kind, while there are more nodes of less memory."""
        if (self._case.variant.replicas or 1) == 1:
            return False
        places = self._places(pool, needs)
        used = {node for nodes in places for node in nodes}
        if len(used) == sum(map(len, places)):
            return False
        level = pool.site.memory_total
        return any(
            len({node for one in pools for node in one.nodes}) > len(used)
            for site, pools in self._pools.items()
            if site.memory_total < level and site.model_copy(update={"memory_total": level}) == pool.site
        )

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
