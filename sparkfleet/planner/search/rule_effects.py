"""Effects of rules on a candidate: flags that they require, limits on its sizes, and sizes set by the deployment that exceed
them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.knowledge.rules.rules import RuleLimits
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.step_costs import own_chunk
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import BATCH_FLAGS, fraction_of, sized_at
from sparkfleet.planner.capacity.weight_reading import chooses_reading
from sparkfleet.planner.engine_args.engine_args import EAGER_FLAGS, chunk_given, kv_type_given, share_given
from sparkfleet.planner.rules.judgement import RuleJudgement, RuleMatch, fold, judge, merge_flags
from sparkfleet.planner.search.candidate_builder import (
    StackedProposal,
    candidate_of,
    known_of,
    name_of,
    situation_elsewhere,
    situation_with,
)
from sparkfleet.planner.types.plan import Candidate, Rejection

CHUNK_PASSED = ("vllm", "llama.cpp")
"""Engines that get the tokens of a prefill step in any case: vLLM's default depends on the release, llama.cpp's passes are a
quarter of its batch."""
RULE_ROUNDS = 4
"""A flag that one rule requires may make another one fire; more rounds than this were never needed."""


def with_required_flags(
    stacked: StackedProposal, sized: Sizing, batch_tokens: int
) -> tuple[Candidate, RuleJudgement, list[RuleMatch]]:
    """Applies required flags until no further rule fires, or one rejects the candidate.

    Returns:
        the candidate, the judgement of it, and the findings that were left out because they are contested.
    """
    case, known = stacked.case, known_of(stacked)
    candidate = candidate_of(stacked, sized)
    required: dict[str, RuleMatch] = {}
    for _ in range(RULE_ROUNDS):
        findings = judge(situation_with(candidate, known, batch_tokens))
        contested = [one for one in findings if case.edge and _contested(one)]
        verdict = fold(one for one in findings if one not in contested)
        if verdict.rejected:
            return candidate, verdict, contested
        required |= {finding.rule.id: finding for finding in verdict.required_by}
        changed = _required(candidate, verdict)
        if changed == candidate:
            break
        candidate = changed
    # A rule whose flags are in force no longer fires, and is still the reason for them.
    return candidate, verdict.model_copy(update={"required_by": tuple(required.values())}), contested


def _contested(matched: RuleMatch) -> bool:
    """True if its limit on the share of the memory has one source, and others published the contrary."""
    rule = matched.rule
    return matched.limits.memory_fraction is not None and rule.confidence == "single" and bool(rule.against)


def _required(candidate: Candidate, verdict: RuleJudgement) -> Candidate:
    """The candidate with the flags, variables and keys that rules require."""
    if not verdict.required_by:
        return candidate
    args, _ = merge_flags(candidate.engine_args, verdict.flags)
    env = {**dict(candidate.env), **dict(verdict.env)}
    keys = {**dict(candidate.speculative), **dict(verdict.speculative)}
    update = {
        "engine_args": args,
        "mmap": candidate.mmap or chooses_reading(parse_flags(args)),
        "env": tuple(sorted(env.items())),
        "speculative": tuple(sorted(keys.items())),
    }
    return candidate.model_copy(update=update)


def exceeded_limit(
    case: VariantCase, candidate: Candidate, limits: RuleLimits, causes: Sequence[RuleMatch]
) -> Rejection | None:
    """A limit that the deployment's own numbers exceed: what is pinned is obeyed, so the candidate is not taken."""
    variant = case.variant
    for name, wanted, most in (
        ("context", variant.context, limits.context),
        ("concurrency", variant.concurrency and candidate.concurrency, limits.concurrency),
        ("speculation_tokens", variant.speculation.tokens, limits.speculation_tokens),
        (
            "batch_tokens",
            chunk_given(variant.engine_args, BATCH_FLAGS.get(candidate.engine, "")),
            limits.batch_tokens,
        ),
        ("memory_fraction", share_given(variant.engine_args, candidate.engine), limits.memory_fraction),
    ):
        if wanted is not None and most is not None and wanted > most:
            cause = next(one for one in causes if getattr(one.limits, name) == most)
            word = name.replace("_", " ")
            total = variant.concurrency if name == "concurrency" else wanted
            of = f" of {total:g}" if total != wanted else ""
            return Rejection(
                what=name_of(candidate), why="rule", rule=cause.rule.id, source=cause.rule.sources[0],
                reason=f"{word} {wanted:g}{of} is set, at most {most:g} works: {cause.rule.symptom}",
            )  # fmt: skip
    return None


def within_limits(
    stacked: StackedProposal,
    candidate: Candidate,
    sized: Sizing,
    settings: EngineSettings,
    limits: RuleLimits,
) -> tuple[Candidate, Sizing, EngineSettings]:
    """The candidate within the limits of rules; sizes are computed again if one changes."""
    case, proposal, _, _ = stacked
    flags = parse_flags(candidate.engine_args)
    given = chunk_given(candidate.engine_args, BATCH_FLAGS.get(candidate.engine, ""))
    settings = settings._replace(
        eager=EAGER_FLAGS[candidate.engine] in flags and bool(EAGER_FLAGS[candidate.engine]),
        marlin=flags.get("--moe-backend") == "marlin" or flags.get("--linear-backend") == "marlin",
        batch_tokens=given or min(settings.batch_tokens, limits.batch_tokens or settings.batch_tokens),
        kv_dtype=kv_type_given(candidate.engine_args, candidate.engine) or sized.kv_dtype,
    )
    k = candidate.speculation.tokens
    if limits.speculation_tokens is not None and k > limits.speculation_tokens:
        fewer = candidate.speculation.at_most(int(limits.speculation_tokens))
        candidate, settings = (
            candidate.model_copy(update={"speculation": fewer}),
            settings._replace(speculation=fewer),
        )
    context = min(sized.context, limits.context or sized.context)
    concurrency = min(sized.concurrency, limits.concurrency or sized.concurrency)
    sized = sized_at(case, proposal, stacked.room, settings, Sizes(context, concurrency))
    most = budget_within(stacked, sized.needs, limits)
    sized = sized_at(case, proposal, most, settings, Sizes(context, concurrency))
    fraction = fraction_of(case, proposal, candidate.engine, sized)
    if fraction is not None and limits.memory_fraction is not None:
        fraction = min(fraction, limits.memory_fraction)
    return (
        candidate.model_copy(
            update={
                "context": context,
                "concurrency": concurrency,
                "kv_dtype": sized.kv_dtype,
                "kv_staging_bytes": int(sized.staging) or None,
                "memory_fraction": fraction,
                "batch_tokens": None if given else _batch_tokens(stacked, settings, context, concurrency),
            }
        ),
        sized,
        settings,
    )


def allows(case: VariantCase, candidate: Candidate, proposal: Proposal, sized: Sizing) -> bool:
    """True if no rule is against a candidate with other sizes, and these are within the limits of rules.

    Args:
        case: the variant.
        candidate: with the flags that rules require.
        proposal: that became it.
        sized: the other sizes, and what they take.
    """
    update = {
        "context": sized.context,
        "concurrency": sized.concurrency,
        "kv_dtype": sized.kv_dtype,
        "memory_fraction": fraction_of(case, proposal, candidate.engine, sized),
    }
    verdict = fold(judge(situation_elsewhere(case, candidate.model_copy(update=update))))
    limits = verdict.limits
    least = sized.needs.mid if case.edge else sized.needs.low  # as `budget_within`
    within = (
        (sized.context, limits.context),
        (sized.concurrency, limits.concurrency),
        (least / proposal.pool.site.memory_total, limits.memory_fraction),
    )
    shared = share_given(case.variant.engine_args, candidate.engine) is not None
    kept = (
        within[:2] if shared else within
    )  # a share that the deployment sets is known to be within the limit
    return not verdict.rejected and all(most is None or size <= most for size, most in kept)


def _batch_tokens(
    stacked: StackedProposal, settings: EngineSettings, context: int, concurrency: int
) -> int | None:
    """Tokens of a prefill step to pass to the engine; None if they are its default on any Spark."""
    if settings.engine not in CHUNK_PASSED and settings.batch_tokens == own_chunk(settings.engine):
        return None
    return stacked.case.predictor.step(stacked.proposal.split, settings, context, concurrency)


def budget_within(stacked: StackedProposal, needs: Band, limits: RuleLimits) -> MemoryBudget:
    """The room that a limit on the memory fraction leaves: tight as long as the lower end of the band is within it."""
    room = stacked.room
    given = share_given(stacked.case.variant.engine_args, stacked.proposal.engine)
    # A share that the deployment sets is known to be within the limit.
    if limits.memory_fraction is None or given is not None:
        return room
    most = limits.memory_fraction * stacked.proposal.pool.site.memory_total
    at_most = most if stacked.case.edge else most + needs.mid - needs.low
    return MemoryBudget(min(room.careful, most), min(room.at_most, at_most))
