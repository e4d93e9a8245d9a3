"""The nearest things that would fit if nothing does: shorter, fewer at once, on more nodes, in fewer bits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkfleet.errors import FactError
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.knowledge.rules.rule_context import TopologyName, parse_flags
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Band
from sparkfleet.perf.predictor import Predictor
from sparkfleet.planner.capacity.headroom import STEP, bisect
from sparkfleet.planner.capacity.proposal import Proposal, VariantCase
from sparkfleet.planner.capacity.sizing import LEAST_CONTEXT, quant_of, size_proposal
from sparkfleet.planner.engine_args.engine_args import LIMITS
from sparkfleet.planner.place.context_split import kv_copies
from sparkfleet.planner.place.fleet_map import GROUP_SIZES, Pool, SiteClass, link_id
from sparkfleet.planner.place.stacks import Stack, splits_for
from sparkfleet.planner.rules.judgement import without_flags
from sparkfleet.planner.search.evaluate import evaluate
from sparkfleet.units import gb

SMALLER = ("fp8", "nvfp4")
"""Formats to name, from the least loss to the most."""
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}

Holds = Callable[[Pool, Band], bool]
"""True if all requested groups have room on nodes like those of a pool, with that need per rank."""


class NearestPlacement(NamedTuple):
    """A split of the model, an engine and a place: the proposal with the least need there, and the room there."""

    proposal: Proposal
    stacks: Sequence[Stack]
    settings: EngineSettings
    room: MemoryBudget


class NodeKind(NamedTuple):
    """Nodes of one kind that the deployment may use."""

    site: SiteClass
    emptiest: str
    empty: MemoryBudget
    """Room of the emptiest one, were nothing of this plan on it."""
    room: MemoryBudget
    """Room of the one that has most now."""


def nearest(
    case: VariantCase, places: Sequence[NearestPlacement], kinds: Sequence[NodeKind], holds: Holds
) -> tuple[str, ...]:
    """The nearest things that would fit, in words; empty if memory is not the reason.

    Args:
        case: what was asked for.
        places: every split of the model that the fleet and the deployment allow, with every engine.
        kinds: the nodes that the deployment may use.
        holds: true if all replicas have room.
    """
    if not places or not kinds or _fits(case, places, holds):
        return ()
    return (
        *_unlimited(case, places, holds),
        *_sharing(case, places, holds),
        *_fewer(case, places, holds),
        *_shorter(case, places, holds),
        *_wider(case, places, kinds),
        *_smaller(case, places, holds),
    )


def joined(case: VariantCase, places: Sequence[NearestPlacement]) -> tuple[str, ...]:
    """Sizing on unlinked nodes: `places` are on empty nodes, as if they were linked."""
    if not _fits(case, places, lambda *_: True):
        return ()
    return (f"fits on {NUMBERS[places[0].proposal.split.ranks]} linked nodes",)


def _fits(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> bool:
    """True if it fits anywhere, on an image that the rules accept."""
    return any(_has_room(case, place, holds) and _passes(case, place, holds) for place in places)


def _passes(case: VariantCase, place: NearestPlacement, holds: Holds) -> bool:
    found, _ = evaluate(case, place.proposal, place.stacks, place.room)
    return found is not None and holds(place.proposal.pool, found.rung.prediction.memory_bytes_per_rank)


def _has_room(case: VariantCase, place: NearestPlacement, holds: Holds) -> bool:
    sized = size_proposal(case, place.proposal, place.room, place.settings)
    return sized.verdict != "no" and holds(place.proposal.pool, sized.needs)


def _asking(case: VariantCase, **fields: int | None) -> VariantCase:
    """The case with other sizes; those of each group, if they are not shares."""
    each = fields.get("concurrency", case.each) if case.each is not None else None
    return replace(case, variant=case.variant.model_copy(update=fields), each=each)


def _unlimited(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> Iterator[str]:
    """The deployment's own arguments that limit the engine's memory, if it fits without them."""
    args = case.variant.engine_args
    flags = parse_flags(args)
    named = [flag for flag in LIMITS if flag in flags]
    free = replace(case, variant=case.variant.model_copy(update={"engine_args": without_flags(args, named)}))
    if named and _fits(free, places, holds):
        yield f"leave {' and '.join(named)} out of engine_args"


def _sharing(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> Iterator[str]:
    """The splits whose ranks would have room if they shared the KV cache that each keeps a copy of."""
    for place in places:
        split = place.proposal.split
        copies = kv_copies(case.predictor.checkpoint, split.tp)
        if copies == 1 or split.dcp > 1:
            continue
        proposal = place.proposal._replace(split=split._replace(dcp=copies))
        if _fits(case, [place._replace(proposal=proposal)], holds):
            undrafted = "none" == proposal.speculation.method != case.variant.speculation.method
            drafts = ", `speculation: none`" if undrafted else ""
            yield f"fits with `parallel: {{tp: {split.tp}, dcp: {copies}}}`{drafts} (ranks share one KV cache)"
            return


def _fewer(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> Iterator[str]:
    asked = case.variant.concurrency or 1
    most = bisect(lambda count: _fits(_asking(case, concurrency=count), places, holds), 0, asked - 1)
    if most:
        yield f"fits at concurrency {most}"


def _shorter(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> Iterator[str]:
    asked = case.variant.context or 0
    steps = bisect(
        lambda steps: _fits(_asking(case, context=steps * STEP), places, holds), 0, max(0, asked - 1) // STEP
    )
    if steps * STEP >= LEAST_CONTEXT:
        yield f"fits at context {steps * STEP}"


def _wider(case: VariantCase, places: Sequence[NearestPlacement], kinds: Sequence[NodeKind]) -> Iterator[str]:
    """Number of linked nodes on which it would fit, all of them as empty as the emptiest one was."""
    kind = max(kinds, key=lambda kind: kind.empty)
    free = replace(case, variant=case.variant.model_copy(update={"parallel": None}))
    like = f" like {kind.emptiest}" if len({kind.site.memory_total for kind in kinds}) > 1 else ""
    like += " per replica" if (case.variant.replicas or 1) > 1 else ""
    for ranks in GROUP_SIZES:
        nodes = f"{NUMBERS[ranks]} linked nodes" if ranks > 1 else "one node"
        pool = linked(kind, ranks)
        wider = [
            place._replace(proposal=place.proposal._replace(split=split, pool=pool), room=kind.empty)
            for place in places
            for split in splits_for(free.variant, case.predictor, ranks)
        ]
        if not _fits(free, wider, lambda *_: True):
            continue
        if kind.room < kind.empty:
            nodes = f"{NUMBERS[ranks]} more{nodes.removeprefix(NUMBERS[ranks])}"
            yield f"fits with {nodes}{like}"
        else:
            yield f"fits on {nodes}{like}"
        return


def linked(kind: NodeKind, ranks: int) -> Pool:
    """Nodes of a kind, this many, joined as they usually are."""
    names = tuple(f"{kind.emptiest}.{number}" for number in range(ranks))
    if ranks == 1:
        return Pool(site=kind.site, nodes=names)
    topology: TopologyName = "direct" if ranks == 2 else "switch"
    link = hardware().link(link_id("roce", 2, topology))
    joined = {
        "ranks": ranks,
        "topology": topology,
        "link_kind": "roce",
        "rails": 2,
        "latency_us": link.latency_us.value,
        "gb_per_s": link.gb_per_s.value,
    }
    return Pool(site=kind.site.model_copy(update=joined), nodes=names)


def _smaller(case: VariantCase, places: Sequence[NearestPlacement], holds: Holds) -> Iterator[str]:
    if (
        case.predictor.checkpoint.gguf is not None
    ):  # its other quantisations are other files, whose sizes are not known here
        return
    for quant in SMALLER:
        if quant == quant_of(case):  # parts that its maker left wider would have to be quantised, too
            continue
        try:
            other = case.predictor.checkpoint.requantized(quant)
        except FactError:
            continue
        less = other.bytes_on_disk < 0.9 * case.predictor.checkpoint.bytes_on_disk
        requantized = replace(case, predictor=Predictor(other))
        # Its images differ from those of the places: only memory is checked.
        if less and any(_has_room(requantized, place, holds) for place in places):
            yield f"fits as {quant.upper()} (about {gb(other.bytes_on_disk)} of weights)"
            return
