"""Plans the copies: senders, receivers, rails and order. Pure: values in, values out.

A node sends only complete, verified copies. In each round every node that has the files sends to nodes that lack them;
those send in the next round: with a switch, 8 nodes take 3 rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from sparkfleet.errors import SpecError
from sparkfleet.specs.inventory import Inventory, Link, RailEnd
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import Manifest
from sparkfleet.units import gb
from sparkfleet.values import Value

Over = Literal["link", "lan"]

RAIL_BYTES_PER_S = 0.6e9
"""Predicted rate of one rail: NVIDIA's playbook reports 51 GB in 85 s from Spark to Spark by scp, one stream."""
LAN_BYTES_PER_S = 0.11e9
"""Predicted rate of the LAN: one gigabit Ethernet, 94 % of it payload."""
MAX_SENDS = 2
"""Concurrent copies from one node, over different cables: a third would compete for rsync's processor cores."""


class Way(Value):
    """One path of a copy: the source's listening address, and the target's address."""

    source_address: str
    target_address: str


class StagingRoute(Value):
    """Route between two nodes: its cables and all their rails. `cables` is empty on the LAN."""

    over: Over
    ways: tuple[Way, ...]
    cables: tuple[int, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Predicted rate."""
        return LAN_BYTES_PER_S if self.over == "lan" else RAIL_BYTES_PER_S * len(self.ways)


class Copy(Value):
    """Copy of the missing files from one node to another. `predicted_s` is a prediction, in seconds."""

    round: int
    source: str
    target: str
    route: StagingRoute
    bytes: int
    predicted_s: float


class Have(Value):
    """Files of a manifest on a node: bytes by key of whole and of partial files, and free bytes on its disk."""

    held: Mapping[str, int] = {}
    begun: Mapping[str, int] = {}
    free_bytes: int


class StagePlan(Value):
    """Route of a manifest to every node that lacks it.

    Attributes:
        pull: the node that downloads it, or "".
        copies: in their order of start.
        no_route: reason of a download by `pull` although another node has it; "" if there is none.
    """

    pull: str = ""
    copies: tuple[Copy, ...] = ()
    no_route: str = ""

    @property
    def predicted_s(self) -> float:
        """Seconds for all copies: the sum over rounds of each round's slowest copy."""
        rounds = {copy.round for copy in self.copies}
        return sum(max(copy.predicted_s for copy in self.copies if copy.round == number) for number in rounds)


def plan(
    inventory: Inventory,
    manifest: Manifest,
    have: Mapping[str, Have],
    targets: Sequence[str],
    reserve_bytes: int,
    *,
    hub: bool = True,
) -> StagePlan:
    """The plan for the files that `targets` lack; nodes in `have` that are not targets may send.

    With `hub`, nodes may download from the Hub: one if no node has the model, and those that no other node can send to.
    The latter are left out until all copies are made: the next plan has them.

    Raises:
        StagingError: a disk has no room, or a target cannot be reached from any source.
    """
    holders = [node for node in have if manifest.complete(have[node].held)]
    lacking = [node for node in dict.fromkeys(targets) if node not in holders]
    _demand_room(manifest, {node: have[node] for node in lacking}, reserve_bytes)
    if not lacking:
        return StagePlan()
    if manifest.kind != "hub" or not hub:
        return StagePlan(copies=copies(inventory, manifest, have, holders, lacking))
    if holders:
        planned, no_route = _copies(inventory, manifest, have, holders, lacking)
        if planned or no_route is None:
            return StagePlan(copies=planned)
        return StagePlan(pull=puller(manifest, have, lacking)[0], no_route=no_route.what)
    first = puller(manifest, have, lacking)[0]
    rest = [node for node in lacking if node != first]
    return StagePlan(pull=first, copies=_copies(inventory, manifest, have, [first], rest)[0])


def puller(manifest: Manifest, have: Mapping[str, Have], among: Sequence[str]) -> list[str]:
    """Nodes to download on, best first: fewest missing bytes, then most free bytes."""
    return sorted(among, key=lambda node: (to_move(manifest, have[node]), -have[node].free_bytes))


def to_move(manifest: Manifest, have: Have) -> int:
    """Bytes that a node lacks, without the bytes of its partial files."""
    contents = manifest.contents
    begun = sum(min(size, contents.get(key, 0)) for key, size in have.begun.items() if key not in have.held)
    return max(manifest.missing(have.held) - begun, 0)


def copies(
    inventory: Inventory,
    manifest: Manifest,
    have: Mapping[str, Have],
    holders: Iterable[str],
    lacking: Iterable[str],
) -> tuple[Copy, ...]:
    """Rounds of copies until every node has it.

    Raises:
        StagingError: no node has it, or a target has no address that a source can reach.
    """
    have_it, pending = list(holders), list(lacking)
    if pending and not have_it:
        raise StagingError(f"no node has {manifest.name}.", do="Copy it to one of the nodes first.")
    planned, no_route = _copies(inventory, manifest, have, have_it, pending)
    if no_route is not None:
        raise no_route
    return planned


def _copies(
    inventory: Inventory,
    manifest: Manifest,
    have: Mapping[str, Have],
    holders: Iterable[str],
    lacking: Iterable[str],
) -> tuple[tuple[Copy, ...], StagingError | None]:
    """Rounds of copies to every node that has a route; the error of the first that has none."""
    have_it, pending = list(holders), list(lacking)
    routes = _Routes(inventory)
    planned: list[Copy] = []
    number = 0
    while pending:
        number += 1
        try:
            begun = tuple(_round(routes, have_it, pending))
        except StagingError as no_route:
            return tuple(planned), no_route
        for source, target, found in begun:
            size = to_move(manifest, have[target])
            seconds = size / found.bytes_per_s
            planned.append(
                Copy(round=number, source=source, target=target, route=found, bytes=size, predicted_s=seconds)
            )
            have_it.append(target)
            pending.remove(target)
    return tuple(planned), None


def route(inventory: Inventory, source: str, target: str) -> StagingRoute:
    """The rails that join two nodes, directly or over one switch; the LAN if there is no link.

    Raises:
        StagingError: there is no link, and one of them has no address that the other can use.
    """
    found = list(_linked(inventory, source, target))
    if found:
        return StagingRoute(
            over="link",
            ways=tuple(dict.fromkeys(way for _, ways in found for way in ways)),
            cables=tuple(sorted({cable for cables, _ in found for cable in cables})),
        )
    return StagingRoute(over="lan", ways=(_over_lan(inventory, source, target),))


def linked(inventory: Inventory, one: str, other: str) -> bool:
    """True if a cable, or a switch, joins two nodes."""
    return next(_linked(inventory, one, other), None) is not None


class _Routes:
    """Links between nodes, each looked up once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[str, str], StagingRoute | None] = {}

    def link(self, source: str, target: str) -> StagingRoute | None:
        """The route over cables, if there is one."""
        pair = (source, target)
        if pair not in self._found:
            joined = linked(self._inventory, source, target)
            self._found[pair] = route(self._inventory, source, target) if joined else None
        return self._found[pair]

    def any(self, source: str, target: str) -> StagingRoute:
        """The route over cables, or over the LAN. Raises StagingError if there is neither."""
        return self.link(source, target) or route(self._inventory, source, target)


def _round(
    routes: _Routes, have_it: Sequence[str], pending: Sequence[str]
) -> Iterator[tuple[str, str, StagingRoute]]:
    """Copies that may run concurrently: as many as there are links, else one over the LAN. StagingError if none can."""
    busy: set[tuple[str, int]] = set()
    sends = dict.fromkeys(have_it, 0)
    began = False
    offers = {target: _offers(routes, have_it, target) for target in pending}
    for target in sorted(pending, key=lambda node: len(offers[node])):
        for source in sorted(offers[target], key=lambda node: sends[node]):
            found = offers[target][source]
            used = {(source, cable) for cable in found.cables}
            if sends[source] < MAX_SENDS and not used & busy:
                busy |= used
                sends[source] += 1
                began = True
                yield source, target, found
                break
    if not began:
        yield _any(routes, have_it, pending)


def _any(routes: _Routes, have_it: Sequence[str], pending: Sequence[str]) -> tuple[str, str, StagingRoute]:
    """The first copy that has any route. Raises the StagingError of the first pair if none has one."""
    refused: list[StagingError] = []
    for target in pending:
        for source in have_it:
            try:
                return source, target, routes.any(source, target)
            except StagingError as error:
                refused.append(error)
    raise refused[0]


def _offers(routes: _Routes, have_it: Sequence[str], target: str) -> dict[str, StagingRoute]:
    """Nodes that could send to a target over a link."""
    offers = {source: routes.link(source, target) for source in have_it}
    return {source: found for source, found in offers.items() if found is not None}


def _linked(
    inventory: Inventory, source: str, target: str
) -> Iterator[tuple[tuple[int, ...], tuple[Way, ...]]]:
    """Cables from one node to the other, and their address pairs."""
    theirs = [(number, link) for number, link in enumerate(inventory.links) if link.nodes == (target,)]
    for number, link in enumerate(inventory.links):
        if set(link.nodes) == {source, target}:
            yield (number,), _ways(_ends(link, source), _ends(link, target))
        elif link.nodes == (source,):
            for other_number, other in theirs:
                if other.switch == link.switch and (ways := _ways(_ends(link, source), _ends(other, target))):
                    yield (number, other_number), ways


def _ends(link: Link, node: str) -> tuple[RailEnd, ...]:
    index = link.nodes.index(node)
    return tuple(rail[index] for rail in link.rails)


def _ways(ours: Iterable[RailEnd], theirs: Sequence[RailEnd]) -> tuple[Way, ...]:
    """Address pairs of ends that share a subnet."""
    return tuple(
        Way(source_address=str(end.interface.ip), target_address=str(other.interface.ip))
        for end in ours
        for other in theirs
        if end.interface.network == other.interface.network
    )


def _over_lan(inventory: Inventory, source: str, target: str) -> Way:
    for node in (source, target):
        if node not in inventory.nodes:
            raise SpecError(f"{node} is not a node of fleet {inventory.fleet}.")
    peer = inventory.nodes[target]
    if peer.is_local or peer.jump is not None or inventory.nodes[source].jump is not None:
        raise StagingError(
            f"{source} and {target} are not linked, and {target} has no LAN address that {source} can use.",
            do="Connect them by a cable, and add it to the inventory: `sparkfleet init` finds it.",
        )
    return Way(source_address="", target_address=peer.address)


def _demand_room(manifest: Manifest, lacking: Mapping[str, Have], reserve_bytes: int) -> None:
    full = {
        node: to_move(manifest, have)
        for node, have in lacking.items()
        if have.free_bytes < to_move(manifest, have) + reserve_bytes
    }
    if full:
        each = ", ".join(
            f"{node} needs {gb(size, exact=True)} and has {gb(lacking[node].free_bytes, exact=True)} free"
            for node, size in full.items()
        )
        raise StagingError(
            f"{manifest.name} does not fit on disk: {each} ({gb(reserve_bytes, exact=True)} are kept in reserve).",
            means="Nothing was transferred.",
            do="Free disk space: `sparkfleet models prune` removes models that no deployment uses.",
        )
