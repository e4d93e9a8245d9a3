"""Evaluates a proposal: applies the rules, changes it as they require, predicts its memory and speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkfleet.knowledge.published.evidence import Evidence, EvidenceLevel
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.knowledge.rules.rules import RuleLimits
from sparkfleet.perf.latency.roofline_terms import own_chunk
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.perf.predictor import EngineSettings
from sparkfleet.planner.capacity.kv_disk import PROMPT, able_stacks
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import (
    BATCH_FLAGS,
    fraction_of,
    quant_of,
    settings_of,
    size_proposal,
    sized_at,
)
from sparkfleet.planner.capacity.too_large import too_large
from sparkfleet.planner.capacity.weight_reading import chooses_reading
from sparkfleet.planner.engine_args.engine_args import (
    EAGER_FLAGS,
    chunk_given,
    kv_type_given,
    share_given,
)
from sparkfleet.planner.engine_args.user_overrides import in_words
from sparkfleet.planner.place.stacks import Stack, images_by_name, in_order
from sparkfleet.planner.rules.judgement import RuleJudgement, RuleMatch, fold, judge, merge_flags, rejections
from sparkfleet.planner.search.candidate_builder import (
    StackedProposal,
    candidate_of,
    known_of,
    name_of,
    situation_with,
)
from sparkfleet.planner.search.notes import notes_of
from sparkfleet.planner.search.objective import (
    SizedProposal,
    doubt,
    evidence_of,
    proof_of,
    published_factor,
    worth,
)
from sparkfleet.planner.types.plan import Candidate, PublishedRuns, Rejection, Rung

CHUNK_PASSED = ("vllm", "llama.cpp")
"""Engines that get the tokens of a prefill step in any case: vLLM's default depends on the release, llama.cpp's passes are a
quarter of its batch."""
STACKS_TRIED = 6
"""Images that are tried per proposal, best evidence first."""
RULE_ROUNDS = 4
"""A flag that one rule requires may make another one fire; more rounds than this were never needed."""


class Evaluation(NamedTuple):
    """A proposal that the rules let pass, with its predictions."""

    proposal: Proposal
    rung: Rung
    worth: float
    sized: SizedProposal
    slowed_by: tuple[RuleMatch, ...] = ()
    """Rules that slow it."""
    predicted: float = 0.0
    """Its worth by the prediction alone, whatever was published."""
    factor: float = 1.0
    """Factor on its predicted rate by what was published. Beside a candidate on fewer nodes it may be theirs
    (`spread.carry_evidence`), for the next comparison of numbers of nodes; `worth` has its own."""
    discount: float = 1.0
    """Factor of its worth by rules and by the number of published measurements."""
    proof: float = 1.0
    """The part of `discount` by the number of published measurements."""

    @property
    def needs(self) -> Band:
        """Bytes per rank."""
        return self.rung.prediction.memory_bytes_per_rank

    def with_note(self, note: str) -> Evaluation:
        """The same with one more note on its rung."""
        return self._replace(rung=self.rung.model_copy(update={"notes": (*self.rung.notes, note)}))


def evaluate(
    case: VariantCase, proposal: Proposal, stacks: Sequence[Stack], room: MemoryBudget
) -> tuple[Evaluation | None, list[Rejection]]:
    """The proposal on the first stack that the rules let pass, None if there is none; and why not on those before it."""
    able, rejected = able_stacks(case.variant, in_order(stacks, proposal.speculation))
    tried = able[:STACKS_TRIED]
    for stack in tried:
        settings = settings_of(case, proposal, stack)
        sized = size_proposal(case, proposal, room, settings)
        if sized.verdict == "no" and not sized.spare:
            rejected.append(too_large(case, proposal, sized, room))
            if settings.disk_tables or not any(one.disk_tables(case.predictor.checkpoint) for one in tried):
                break  # no other stack needs less
            continue
        found = _ruled(StackedProposal(case, proposal, stack, room), sized, settings)
        if isinstance(found, Evaluation):
            return found, rejected
        rejected += found
    return None, rejected


def _ruled(stacked: StackedProposal, sized: Sizing, settings: EngineSettings) -> Evaluation | list[Rejection]:
    """The evaluation with the flags and limits that rules require; rejections if it is not allowed or has no room."""
    case, proposal, _, _ = stacked
    candidate, verdict, contested = _with_required_flags(stacked, sized, settings.batch_tokens)
    if verdict.rejected:
        by_rules = rejections(verdict, name_of(candidate))
        return [one.model_copy(update={"why": "rule"}) for one in by_rules]
    against = _against_wishes(case, candidate, verdict.limits, verdict.required_by)
    if against is not None:
        return [against]
    candidate, limited, changed_settings = _limited(stacked, candidate, sized, settings, verdict.limits)
    if limited.verdict == "no":
        most = _within(stacked, limited.needs, verdict.limits)
        smaller = _smaller(case, proposal, most, changed_settings, limited)
        # A rule may set the KV cache's precision: then the sizes that were tried come back.
        tried = (smaller.sizes, smaller.kv_dtype) == (sized.sizes, sized.kv_dtype)
        if smaller.verdict == "no" or tried:
            return [too_large(case, proposal, limited, most)]
        # Other rules may apply to the smaller sizes.
        found = _ruled(stacked, smaller, settings)
        note = _lessened(limited, smaller, verdict)
        return found.with_note(note) if isinstance(found, Evaluation) else found
    evaluation = _predicted(stacked, candidate, limited, changed_settings, verdict)
    for one in contested:
        evaluation = evaluation.with_note(f"against {one.rule.id}: {one.rule.title}; but {one.rule.against}")
    return evaluation


def _with_required_flags(
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


def _smaller(
    case: VariantCase, proposal: Proposal, room: MemoryBudget, settings: EngineSettings, sized: Sizing
) -> Sizing:
    """The first sizes below those that have no room within what rules require; they end with the smallest."""
    below = replace(case, most=Sizes(sized.context, sized.concurrency))
    return size_proposal(below, proposal, room, settings)


def _lessened(sized: Sizing, smaller: Sizing, verdict: RuleJudgement) -> str:
    less = [
        f"{name} {now} instead of {then}"
        for name, now, then in (
            ("context", smaller.context, sized.context),
            ("concurrency", smaller.concurrency, sized.concurrency),
        )
        if now < then
    ]
    otherwise = "" if less else " otherwise"
    less += [f"a KV cache in {smaller.kv_dtype}"] if smaller.kv_dtype != sized.kv_dtype else []
    limiting = [one for one in verdict.required_by if one.limits != RuleLimits()]
    rules = ", ".join(finding.rule.id for finding in limiting or verdict.required_by)
    wanted = f"{sized.context} × {sized.concurrency} does not fit{otherwise}"
    return f"{', '.join(less)}: {wanted} within what rules require ({rules})"


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


def _against_wishes(
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


def _limited(
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
    most = _within(stacked, sized.needs, limits)
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


def _batch_tokens(
    stacked: StackedProposal, settings: EngineSettings, context: int, concurrency: int
) -> int | None:
    """Tokens of a prefill step to pass to the engine; None if they are its default on any Spark."""
    if settings.engine not in CHUNK_PASSED and settings.batch_tokens == own_chunk(settings.engine):
        return None
    return stacked.case.predictor.step(stacked.proposal.split, settings, context, concurrency)


def _within(stacked: StackedProposal, needs: Band, limits: RuleLimits) -> MemoryBudget:
    """The room that a limit on the memory fraction leaves: tight as long as the lower end of the band is within it."""
    room = stacked.room
    given = share_given(stacked.case.variant.engine_args, stacked.proposal.engine)
    # A share that the deployment sets is known to be within the limit.
    if limits.memory_fraction is None or given is not None:
        return room
    most = limits.memory_fraction * stacked.proposal.pool.site.memory_total
    at_most = most if stacked.case.edge else most + needs.mid - needs.low
    return MemoryBudget(min(room.careful, most), min(room.at_most, at_most))


def _long_prompt(stacked: StackedProposal, settings: EngineSettings, sized: Sizing) -> Band | None:
    """TTFT of the prompt that plans name if KV is kept on the disk; None if none is."""
    if not settings.kv_disk:
        return None
    tokens = min(PROMPT, sized.context)
    return stacked.case.predictor.long_prompt(stacked.proposal.split, settings, tokens).ttft_ms


def _predicted(
    stacked: StackedProposal,
    candidate: Candidate,
    sized: Sizing,
    settings: EngineSettings,
    verdict: RuleJudgement,
) -> Evaluation:
    case, proposal, stack, _ = stacked
    alone = case.predictor.rates(proposal.split, settings, sized.context, 1)
    many = case.predictor.rates(proposal.split, settings, sized.context, sized.concurrency)
    check = case.predictor.check(proposal.split, settings)
    slower = verdict.factor("decode_tps")
    prediction = Prediction(
        memory_bytes_per_rank=sized.needs,
        memory_parts=sized.parts,
        verdict=sized.verdict,
        weights_bytes=case.predictor.checkpoint.bytes_on_disk,
        weights_estimated=not case.predictor.checkpoint.weights_known,
        ttft_ms=_times(alone.ttft_ms, 1 / verdict.factor("ttft")),
        decode_tps_per_request=_times(alone.decode_tps_per_request, slower),
        decode_tps_aggregate=_times(many.decode_tps_aggregate, slower),
        prefill_tps=_times(alone.prefill_tps, verdict.factor("prefill_tps")),
        prompt=min(2048, max(1, sized.context // 2)),
        long_prompt_ms=_long_prompt(stacked, settings, sized),
        concurrency=sized.concurrency,
        accepted=alone.accepted if proposal.speculation.method != "none" else None,
        check_ttft_ms=_times(check.ttft_ms, 1 / verdict.factor("ttft")),
        check_decode_tps=_times(check.decode_tps_per_request, slower),
    )
    ranked = SizedProposal(case, proposal, settings, sized.sizes)
    discount = slower * doubt(case, stack, proposal, verdict)
    factor = published_factor(ranked)
    value = worth(ranked, factor) * discount
    proof = evidence_of(case, proposal)
    proven = proof_of(case, proposal).discount(busy=case.objective == "throughput")
    rung = Rung(
        candidate=candidate,
        prediction=prediction,
        reason="",
        worth=value,
        published=_published(proof, mixed=bool(images_by_name(case.variant.model, quant_of(case)))),
        rules=tuple(finding.rule.id for finding in verdict.required_by),
        notes=tuple(notes_of(stacked, candidate, sized, verdict)),
        pinned=in_words(case.variant.engine_args),
    )
    return Evaluation(
        proposal,
        rung,
        value,
        ranked,
        verdict.penalties,
        worth(ranked, 1.0) * slower,
        factor,
        discount,
        proven,
    )


def _published(proof: Evidence, *, mixed: bool) -> PublishedRuns:
    """The nearest published runs, as plans have them.

    Args:
        proof: published runs for the candidate.
        mixed: some are of builds that store the weights in other bits than its image: their rate is not its.
    """
    rates = (one.alone for one in proof.nearest if one.alone and one.nodes == proof.nodes)
    return PublishedRuns(
        rows=sum(one.rows for one in proof.nearest),
        sources=tuple(dict.fromkeys(source for one in proof.nearest for source in one.sources)),
        same=proof.level <= EvidenceLevel.SIBLING,
        alone=None if mixed else next(rates, None),
    )


def _times(band: Band | None, factor: float) -> Band | None:
    # Measurements include the effect of slowing rules.
    if band is None or factor == 1.0 or band.provenance is Provenance.MEASURED:
        return band
    update = {"low": band.low * factor, "mid": band.mid * factor, "high": band.high * factor}
    return band.model_copy(update=update)
