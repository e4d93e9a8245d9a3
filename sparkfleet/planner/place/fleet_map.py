"""The fleet for the planner: nodes by kind, links, and the sets of nodes on which one group may run. Pure.

Nodes of equal kind are interchangeable: candidates are worked out once per *site class* (how many nodes, how much memory the
smallest of them has, how they are joined), and only placing them looks at nodes one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from sparkfleet.hostfacts.network.link import LinkFacts, LinkKind
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.knowledge.hardware import hardware, memory_alike
from sparkfleet.knowledge.rules.rule_context import TopologyName
from sparkfleet.specs.inventory import Inventory, Link
from sparkfleet.values import Value

GROUP_SIZES = (1, 2, 3, 4, 8)
"""Nodes that one engine instance has been published on."""
RING_SIZES = (3, 4)
"""Rings without a switch that NVIDIA's playbooks and others describe; larger ones are not published."""

MEMORY_STEP = 1 << 29
LINK_STEP = 0.25
"""Cables of a switch that differ by less are of one class: healthy rails are measured with 92 to 112 Gb/s."""


class SiteClass(Value):
    """Properties that all sites of one class share; a prediction depends on nothing else."""

    ranks: int
    gpu: str
    """Name of the GPU; "" if there is none."""
    driver: str = ""
    kernel: str = ""
    """Release of the kernel, if all nodes have the same one; "": they differ, or it is not known."""
    memory_total: int
    """Of the smallest node, bytes."""
    topology: TopologyName = "none"
    link_kind: LinkKind | None = None
    rails: int = 0
    latency_us: float = 0.0
    gb_per_s: float = 0.0

    @property
    def link(self) -> LinkSpeed | None:
        """The slowest link between its nodes; None for one node."""
        if self.ranks == 1:
            return None
        return LinkSpeed(latency_us=self.latency_us, gb_per_s=self.gb_per_s)

    @property
    def link_id(self) -> str | None:
        """Name of the link in hardware.yaml, as rules ask for it; None for one node."""
        if self.ranks == 1:
            return None
        return link_id(self.link_kind or "roce", self.rails, self.topology)


class Pool(Value):
    """Nodes of which any `site.ranks` make a site of one class."""

    site: SiteClass
    nodes: tuple[str, ...]


class Fleet(Value):
    """Nodes and links, with their facts."""

    name: str = ""
    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...] = ()
    head: str = ""
    """Node of the controller and the gateway, without which nothing moves; "": not known."""
    assumed: tuple[str, ...] = ()
    """Nodes that nobody has asked: their facts are those of their kind."""
    drained: tuple[str, ...] = ()
    """Nodes of the inventory that are left out, because nothing is to be started on them."""
    exposed: tuple[str, ...] = ()
    """Nodes whose management network must not be the one where ranks meet: no firewall of the fleet closes it."""
    endpoint_ports: tuple[tuple[str, int], ...] = ()
    """Node and port of each listener of the gateway that no custom workload can have besides."""

    @cached_property
    def by_name(self) -> dict[str, NodeFacts]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    def pools(self, ranks: int, allowed: Sequence[str] = ()) -> tuple[Pool, ...]:
        """Sets of `ranks` linked nodes, best links first. `allowed`: only these nodes; empty: any."""
        key = (ranks, tuple(allowed))
        if key not in self._found:
            self._found[key] = self._pools(ranks, allowed)
        return self._found[key]

    def is_unequal(self, pool: Pool) -> bool:
        """True if the only group that fits in a pool has nodes of unequal memory."""
        totals = [self.by_name[name].memory.total for name in pool.nodes]
        return 1 < len(pool.nodes) == pool.site.ranks and not memory_alike(totals)

    def neighbours(self, nodes: Sequence[str], allowed: Sequence[str] = ()) -> tuple[str, ...]:
        """Further nodes that could be in a group of as many ranks with any of these; `allowed`: only these, () is any."""
        pools = self.pools(len(nodes), allowed) if len(nodes) > 1 else ()
        found = dict.fromkeys(name for pool in pools if set(pool.nodes) & set(nodes) for name in pool.nodes)
        return tuple(name for name in found if name not in nodes)

    @cached_property
    def totals(self) -> dict[str, int]:
        """Memory of each node, bytes."""
        return {node.name: node.memory.total for node in self.nodes}

    @cached_property
    def _found(self) -> dict[tuple[int, tuple[str, ...]], tuple[Pool, ...]]:
        return {}

    def _pools(self, ranks: int, allowed: Sequence[str]) -> tuple[Pool, ...]:
        names = tuple(node.name for node in self.nodes if not allowed or node.name in allowed)
        if ranks == 1:
            return tuple(self._alone(names))
        found = [*self._direct(ranks, names), *self._switched(ranks, names)]

        def order(pool: Pool) -> tuple[float, float, bool]:
            return pool.site.latency_us, -pool.site.gb_per_s, self.is_unequal(pool)

        return tuple(sorted(found, key=order))

    def _alone(self, names: Sequence[str]) -> Iterator[Pool]:
        kinds: dict[SiteClass, list[str]] = defaultdict(list)
        for name in names:
            kinds[self._class((name,), "none", ())].append(name)
        for site, members in kinds.items():
            yield Pool(site=site, nodes=tuple(members))

    def _direct(self, ranks: int, names: Sequence[str]) -> Iterator[Pool]:
        wanted = set(names)
        joined = {
            frozenset(link.nodes): link
            for link in self.links
            if len(link.nodes) == 2 and wanted.issuperset(link.nodes) and self._alike(link.nodes)
        }
        if ranks == 2:
            for link in joined.values():
                yield Pool(site=self._class(link.nodes, "direct", (link,)), nodes=link.nodes)
        elif ranks in RING_SIZES:
            for ring in self._closed_rings(joined.keys(), ranks):
                links = tuple(link for pair, link in joined.items() if pair <= set(ring))
                yield Pool(site=self._class(ring, "ring", links), nodes=ring)

    def _closed_rings(self, joined: Iterable[frozenset[str]], ranks: int) -> list[tuple[str, ...]]:
        """Rings whose ranks may meet on the management network: no rail joins all of them."""
        return [ring for ring in _rings(joined, ranks) if not set(ring) & set(self.exposed)]

    def open_rings(self, ranks: int, allowed: Sequence[str] = ()) -> bool:
        """True if there is a ring of that size that is left out, because nodes of it are `exposed`."""
        closed = self.model_copy(update={"exposed": ()})
        rings = [pool for pool in closed._pools(ranks, allowed) if pool.site.topology == "ring"]
        return any(set(pool.nodes) & set(self.exposed) for pool in rings)

    def _switched(self, ranks: int, names: Sequence[str]) -> Iterator[Pool]:
        wanted = set(names)
        switches: dict[str, list[LinkFacts]] = defaultdict(list)
        for link in self.links:
            if link.switch is not None and link.nodes[0] in wanted:
                switches[link.switch].append(link)
        for links in switches.values():
            yield from self._of_switch(ranks, links)

    def _of_switch(self, ranks: int, links: Sequence[LinkFacts]) -> Iterator[Pool]:
        """One pool per amount of memory and speed of the cable: the nodes that have at least both."""
        seen: set[tuple[str, ...]] = set()
        for cables in _at_least(links):
            for kind in dict.fromkeys(self._kind(link.nodes[0]) for link in cables):
                least = kind[2]
                members = [
                    link
                    for link in cables
                    if self._kind(link.nodes[0])[:2] == kind[:2] and self._kind(link.nodes[0])[2] >= least
                ]
                nodes = tuple(link.nodes[0] for link in members)
                if len(nodes) >= ranks and nodes not in seen:
                    seen.add(nodes)
                    site = self._class(nodes, "switch", members).model_copy(update={"ranks": ranks})
                    yield Pool(site=site, nodes=nodes)

    def _kind(self, name: str) -> tuple[str, str, int]:
        node = self.by_name[name]
        gpu = node.gpu
        # Boxes of one kind differ by a few MiB.
        total = node.memory.total - node.memory.total % MEMORY_STEP
        return (gpu.name if gpu else "", gpu.driver if gpu else "", total)

    def _alike(self, names: Iterable[str]) -> bool:
        return len({self._kind(name)[:2] for name in names}) == 1

    def _class(self, names: Sequence[str], topology: TopologyName, links: Sequence[LinkFacts]) -> SiteClass:
        gpu, driver, _ = self._kind(names[0])
        kernels = {self.by_name[name].kernel for name in names}
        slowest = max(links, key=lambda link: (link.latency_us, -link.gb_per_s), default=None)
        site = SiteClass(
            ranks=len(names),
            gpu=gpu,
            driver=driver,
            kernel=kernels.pop() if len(kernels) == 1 else "",
            topology=topology,
            memory_total=min(self._kind(name)[2] for name in names),
        )
        if slowest is None:
            return site
        joined = {"link_kind": slowest.kind, "rails": slowest.rails, "latency_us": slowest.latency_us}
        return site.model_copy(update={**joined, "gb_per_s": min(link.gb_per_s for link in links)})


def _at_least(links: Sequence[LinkFacts]) -> Iterator[tuple[LinkFacts, ...]]:
    """The cables of a switch that are as fast as its fastest, then those as fast as the fastest of the rest, until all."""
    rest = sorted(links, key=lambda link: (link.latency_us, -link.gb_per_s))
    while rest:
        first = rest[0]
        rest = [link for link in rest if _is_slower(link, first)]
        yield tuple(link for link in links if not _is_slower(link, first))


def _is_slower(link: LinkFacts, than: LinkFacts) -> bool:
    latency, bandwidth = than.latency_us * (1 + LINK_STEP), than.gb_per_s / (1 + LINK_STEP)
    return link.latency_us > latency or link.gb_per_s < bandwidth


def _rings(pairs: Iterable[frozenset[str]], size: int) -> list[tuple[str, ...]]:
    """Cycles of `size` nodes, each once, starting at its first name."""
    beside: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        one, other = sorted(pair)
        beside[one].add(other)
        beside[other].add(one)
    found: list[tuple[str, ...]] = []

    def walk(path: tuple[str, ...]) -> None:
        if len(path) == size:
            if path[0] in beside[path[-1]] and path[1] < path[-1]:
                found.append(path)
            return
        for after in sorted(beside[path[-1]]):
            if after > path[0] and after not in path:
                walk((*path, after))

    for start in sorted(beside):
        walk((start,))
    return found


# --- from an inventory ------------------------------------------------------------------------------------------------


def link_id(kind: LinkKind, rails: int, topology: TopologyName) -> str:
    """The entry of hardware.yaml that such a link is."""
    if kind == "tcp":
        return "tcp"
    if topology in ("ring", "switch"):
        return f"roce-{topology}"
    return "roce-dual" if rails > 1 else "roce-single"


def links_of(inventory: Inventory) -> tuple[LinkFacts, ...]:
    """The inventory's links with the numbers that such links reached elsewhere; nothing is measured."""
    ringed = _ringed(inventory.links)
    return tuple(_link_facts(link, frozenset(link.nodes) in ringed) for link in inventory.links)


def _ringed(links: Sequence[Link]) -> frozenset[frozenset[str]]:
    pairs = [frozenset(link.nodes) for link in links if len(link.nodes) == 2]
    rings = [ring for size in RING_SIZES for ring in _rings(pairs, size)]
    return frozenset(
        frozenset((ring[at], ring[(at + 1) % len(ring)])) for ring in rings for at in range(len(ring))
    )


def _link_facts(link: Link, in_ring: bool) -> LinkFacts:
    kind: LinkKind = "roce" if all(end.rdma for rail in link.rails for end in rail) else "tcp"
    topology: TopologyName = "switch" if link.switch else "ring" if in_ring else "direct"
    known = hardware().link(link_id(kind, len(link.rails), topology))
    return LinkFacts(
        nodes=link.nodes,
        switch=link.switch,
        rails=len(link.rails),
        kind=kind,
        latency_us=known.latency_us.value,
        gb_per_s=known.gb_per_s.value,
    )
