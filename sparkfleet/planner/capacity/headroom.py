"""Headroom of a choice, and the sizes that were reduced: against the memory of its nodes. Pure.

lowered    reason why a rung has less than the wanted sizes, in words
reached    the longest context and the most requests that its nodes have room for
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.knowledge.engines.images import requantized_by
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.factor_keys import release_of
from sparkfleet.perf.latency.step_costs import own_chunk
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import BATCH_FLAGS, planned_chunk, size_proposal, sized_at
from sparkfleet.planner.engine_args.engine_args import EAGER_FLAGS, chunk_given, kv_type_given
from sparkfleet.planner.types.plan import Candidate, Rung

STEP = 1024
"""Contexts are tried in multiples of so many tokens."""
MOST_REQUESTS = 1024
"""Most requests at once that are tried."""


def bisect(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number up to `high` that fits, if fewer always do; `low`, which is not tried, if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def lowered(
    case: VariantCase, proposal: Proposal, settings: EngineSettings, room: MemoryBudget, rung: Rung
) -> str:
    """Sizes that a rung reduced, and the reason; "" if none, or if rules set them.

    Args:
        case: of the variant, with the requested sizes.
        proposal: of the rung.
        settings: of its sizing.
        room: of its sizing.
        rung: the result.
    """
    sized, has = size_proposal(case, proposal, room, settings), rung.candidate
    concurrency = case.concurrency_of(proposal.split.ranks)
    sizes = (
        ("context", has.context, sized.context, case.context),
        ("concurrency", has.concurrency, sized.concurrency, concurrency),
    )
    less = [f"{name} {now} instead of {then}" for name, now, fitting, then in sizes if now == fitting < then]
    otherwise = "" if any(fitting < then for _, _, fitting, then in sizes) else " otherwise"
    if has.kv_dtype == sized.kv_dtype != settings.kv_dtype:
        less.append(f"a KV cache in {has.kv_dtype}")
    wanted = sized_at(case, proposal, room, settings, Sizes(case.context, concurrency))
    if not less or wanted.verdict == "fits":
        return ""
    why = "does not fit" if wanted.verdict == "no" else "is tight"
    if wanted.verdict == sized.verdict:
        why = "is tighter still"
    return f"{', '.join(less)}: {case.context} × {concurrency} {why}{otherwise}"


def reached(
    case: VariantCase,
    choice: Rung,
    room: MemoryBudget,
    instead: Candidate | None = None,
    *,
    allows: Callable[[VariantCase, Candidate, Proposal, Sizing], bool] | None,
) -> dict[str, int]:
    """`largest_context` at the planned concurrency and `largest_concurrency` at the planned context, by those names.

    Both leave the host as much as the plan does: its reserve, or the minimum if the plan is tight.

    Args:
        case: what is served; contexts end at the checkpoint's longest.
        choice: as it is planned.
        room: of its fullest node, the choice itself not counted.
        instead: a candidate on the same nodes that is asked about in its place.
        allows: True if rules let a candidate have other sizes (`rule_effects.allows`); None: only the memory counts, as
            rules are against the candidate.
    """
    candidate = instead or choice.candidate
    case = replace(case, edge=choice.prediction.memory_bytes_per_rank.mid > room.at_most)
    proposal = proposal_of(case, candidate)
    settings = settings_of_candidate(candidate)
    enough = ("fits", "tight") if choice.prediction.verdict == "tight" else ("fits",)

    def fits(context: int, concurrency: int) -> bool:
        sized = sized_at(case, proposal, room, settings, Sizes(context, concurrency))
        return sized.verdict in enough and (allows is None or allows(case, candidate, proposal, sized))

    longest = case.predictor.checkpoint.max_positions or candidate.context
    steps = bisect(lambda steps: fits(steps * STEP, candidate.concurrency), 0, longest // STEP)
    requests = bisect(lambda count: fits(candidate.context, count), candidate.concurrency, MOST_REQUESTS)
    return {"largest_context": max(steps * STEP, candidate.context), "largest_concurrency": requests}


def proposal_of(case: VariantCase, candidate: Candidate) -> Proposal:
    """The proposal that became a candidate."""
    shape = candidate.shape
    pools = case.fleet.pools(shape.ranks, case.variant.nodes)
    pool = next(pool for pool in pools if set(shape.nodes) <= set(pool.nodes))
    return Proposal(shape.split, pool, candidate.engine, candidate.speculation)


def _chunk_of(candidate: Candidate) -> int:
    """The chunk of a candidate whose arguments do not set it; one that holds all its requests is no limit to others."""
    given = candidate.batch_tokens or own_chunk(candidate.engine)
    return (
        max(given, planned_chunk(candidate.engine))
        if given >= candidate.context * candidate.concurrency
        else given
    )


def settings_of_candidate(candidate: Candidate, link: LinkSpeed | None = None) -> EngineSettings:
    """Settings that a candidate's memory and speed depend on; the link between its nodes affects its speed only."""
    flags = parse_flags(candidate.engine_args)
    eager = EAGER_FLAGS.get(candidate.engine)
    given = chunk_given(candidate.engine_args, BATCH_FLAGS.get(candidate.engine, ""))
    return EngineSettings(
        engine=candidate.engine,
        release=release_of(candidate.image or "", candidate.engine_version),
        speculation=candidate.speculation,
        eager=bool(eager) and eager in flags,
        kv_dtype=kv_type_given(candidate.engine_args, candidate.engine) or candidate.kv_dtype,
        batch_tokens=given or _chunk_of(candidate),
        link=link,
        requantized=requantized_by(candidate.image or "", candidate.quant),
        marlin="marlin" in (flags.get("--moe-backend"), flags.get("--linear-backend")),
    )
