"""Judges a proposal: applies the rules, changes it as they require, predicts its memory and speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkfleet.knowledge.engines.engine_flags import flag_faults
from sparkfleet.knowledge.published.evidence import Evidence, EvidenceLevel
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.knowledge.rules.rules import RuleLimits
from sparkfleet.perf.latency.roofline_terms import own_chunk
from sparkfleet.perf.memory.demand import FLOOR, MemoryBudget
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.perf.predictor import Settings
from sparkfleet.planner.capacity.sizing import (
    BATCH_FLAGS,
    DEFAULT_CONTEXT,
    EAGER_FLAGS,
    Proposal,
    Sizes,
    Sizing,
    VariantContext,
    fraction_of,
    quant_of,
    settings_of,
    size_proposal,
    sized_at,
)
from sparkfleet.planner.capacity.too_large import too_large
from sparkfleet.planner.engine_args.engine_args import KV_FLAG, MEMORY_FLAGS, chunk_given, share_given
from sparkfleet.planner.engine_args.user_overrides import in_words
from sparkfleet.planner.place.drafting import declared_heads, license_of_draft
from sparkfleet.planner.place.stacks import Stack, in_order, proves
from sparkfleet.planner.rules.judgement import RuleJudgement as Judgement
from sparkfleet.planner.rules.judgement import RuleMatch, fold, judge, merge_flags, rejections
from sparkfleet.planner.search.candidate_builder import (
    StackedProposal,
    candidate_of,
    known_of,
    name_of,
    situation_with,
)
from sparkfleet.planner.search.objective import doubt, evidence_of, proof_of, worth
from sparkfleet.planner.types.plan import ENGINE_LABELS, Candidate, PublishedRuns, Rejection, Rung
from sparkfleet.units import GIB, gib

STACKS_TRIED = 6
"""Images that are tried per proposal, best evidence first."""
RULE_ROUNDS = 4
"""A flag that one rule requires may make another one fire; more rounds than this were never needed."""


class Evaluation(NamedTuple):
    """A proposal after rules and predictions; `rung` is None if nothing is left of it."""

    proposal: Proposal
    rung: Rung | None
    worth: float
    rejected: tuple[Rejection, ...]
    slowed_by: tuple[RuleMatch, ...] = ()
    """Rules that slow it."""
    predicted: float = 0.0
    """Its worth by the prediction alone, whatever was published."""


def assess(
    case: VariantContext, proposal: Proposal, stacks: Sequence[Stack], room: MemoryBudget
) -> Evaluation:
    """The proposal on the first stack that the rules let pass."""
    rejected: list[Rejection] = []
    tried = in_order(stacks, proposal.speculation)[:STACKS_TRIED]
    for stack in tried:
        settings = settings_of(case, proposal, stack)
        sized = size_proposal(case, proposal, room, settings)
        if sized.verdict == "no" and not sized.spare:
            rejected.append(too_large(case, proposal, sized, room))
            if settings.disk_tables or not any(one.disk_tables(case.predictor.checkpoint) for one in tried):
                break  # no other stack needs less
            continue
        found = _ruled(StackedProposal(case, proposal, stack, room), sized, settings)
        if found.rung is not None:
            return found._replace(rejected=tuple(rejected))
        rejected += found.rejected
    return Evaluation(proposal, None, 0.0, tuple(rejected))


def _ruled(stacked: StackedProposal, sized: Sizing, settings: Settings) -> Evaluation:
    """Applies required flags until no further rule fires, or rejects the proposal."""
    case, proposal, _, _ = stacked
    tried = sized[:3]
    candidate = candidate_of(stacked, sized)
    known = known_of(stacked)
    required: dict[str, RuleMatch] = {}
    for _ in range(RULE_ROUNDS):
        findings = judge(situation_with(candidate, known, settings.batch_tokens))
        contested = [one for one in findings if case.edge and _contested(one)]
        verdict = fold(one for one in findings if one not in contested)
        if verdict.rejected:
            by_rules = rejections(verdict, name_of(candidate))
            return Evaluation(
                proposal, None, 0.0, tuple(one.model_copy(update={"why": "rule"}) for one in by_rules)
            )
        required |= {finding.rule.id: finding for finding in verdict.required_by}
        changed = _required(candidate, verdict)
        if changed == candidate:
            break
        candidate = changed
    # A rule whose flags are in force no longer fires, and is still the reason for them.
    verdict = verdict.model_copy(update={"required_by": tuple(required.values())})
    against = _against_wishes(case, candidate, verdict.limits, verdict.required_by)
    if against is not None:
        return Evaluation(proposal, None, 0.0, (against,))
    candidate, sized, changed_settings = _limited(stacked, candidate, sized, settings, verdict.limits)
    if sized.verdict == "no":
        most = _within(stacked, sized.needs, verdict.limits)
        smaller = _smaller(case, proposal, most, changed_settings, sized)
        # A rule may set the KV cache's precision: then the sizes that were tried come back.
        if smaller.verdict == "no" or smaller[:3] == tried:
            return Evaluation(proposal, None, 0.0, (too_large(case, proposal, sized, most),))
        # Other rules may apply to the smaller sizes.
        return _with_note(_ruled(stacked, smaller, settings), _lessened(sized, smaller, verdict))
    judged = _predicted(stacked, candidate, sized, changed_settings, verdict)
    for one in contested:
        judged = _with_note(judged, f"against {one.rule.id}: {one.rule.title}; but {one.rule.against}")
    return judged


def _contested(finding: RuleMatch) -> bool:
    """True if its limit on the share of the memory has one source, and others published the contrary."""
    rule = finding.rule
    return (
        _limits_of(finding).memory_fraction is not None and rule.confidence == "single" and bool(rule.against)
    )


def _smaller(
    case: VariantContext, proposal: Proposal, room: MemoryBudget, settings: Settings, sized: Sizing
) -> Sizing:
    """The first sizes below those that have no room within what rules require; they end with the smallest."""
    below = replace(case, most=Sizes(sized.context, sized.concurrency))
    return size_proposal(below, proposal, room, settings)


def _lessened(sized: Sizing, smaller: Sizing, verdict: Judgement) -> str:
    less = [
        f"{name} {now} instead of {then}"
        for name, now, then in (
            ("context", smaller.context, sized.context),
            ("concurrency", smaller.concurrency, sized.concurrency),
        )
        if now < then
    ]
    less += [f"a KV cache in {smaller.kv_dtype}"] if smaller.kv_dtype != sized.kv_dtype else []
    limiting = [one for one in verdict.required_by if _limits_of(one) != RuleLimits()]
    rules = ", ".join(finding.rule.id for finding in limiting or verdict.required_by)
    return f"{', '.join(less)}: {sized.context} × {sized.concurrency} does not fit within what rules require ({rules})"


def _with_note(judged: Evaluation, note: str) -> Evaluation:
    if judged.rung is None:
        return judged
    return judged._replace(rung=judged.rung.model_copy(update={"notes": (*judged.rung.notes, note)}))


def _required(candidate: Candidate, verdict: Judgement) -> Candidate:
    """The candidate with the flags, variables and keys that rules require."""
    if not verdict.required_by:
        return candidate
    args, _ = merge_flags(candidate.engine_args, verdict.flags)
    env = {**dict(candidate.env), **dict(verdict.env)}
    keys = {**dict(candidate.speculative), **dict(verdict.speculative)}
    update = {
        "engine_args": args,
        "env": tuple(sorted(env.items())),
        "speculative": tuple(sorted(keys.items())),
    }
    return candidate.model_copy(update=update)


def _against_wishes(
    case: VariantContext, candidate: Candidate, limits: RuleLimits, causes: Sequence[RuleMatch]
) -> Rejection | None:
    """A limit that the deployment's own numbers exceed: what is pinned is obeyed, so the candidate is not taken."""
    variant, flags = case.variant, parse_flags(case.variant.engine_args)
    for name, wanted, most in (
        ("context", variant.context, limits.context),
        ("concurrency", variant.concurrency, limits.concurrency),
        ("speculation_tokens", variant.speculation.tokens, limits.speculation_tokens),
        (
            "batch_tokens",
            chunk_given(variant.engine_args, BATCH_FLAGS.get(candidate.engine, "")),
            limits.batch_tokens,
        ),
        ("memory_fraction", _given_number(flags, MEMORY_FLAGS, candidate), limits.memory_fraction),
    ):
        if wanted is not None and most is not None and wanted > most:
            cause = next(one for one in causes if getattr(_limits_of(one), name) == most)
            word = name.replace("_", " ")
            return Rejection(
                what=name_of(candidate), why="rule", rule=cause.rule.id, source=cause.rule.sources[0],
                reason=f"{word} {wanted:g} is set, at most {most:g} works: {cause.rule.symptom}",
            )  # fmt: skip
    return None


def _given_number(flags: Mapping[str, str], names: Mapping[str, str], candidate: Candidate) -> float | None:
    """The number that the deployment's own arguments give a flag, by engine; None if they give none."""
    try:
        return float(flags.get(names.get(candidate.engine, ""), ""))
    except ValueError:
        return None


def _limits_of(finding: RuleMatch) -> RuleLimits:
    return getattr(finding.rule.effect, "limits", RuleLimits())


def _limited(
    stacked: StackedProposal, candidate: Candidate, sized: Sizing, settings: Settings, limits: RuleLimits
) -> tuple[Candidate, Sizing, Settings]:
    """The candidate within the limits of rules; sizes are computed again if one changes."""
    case, proposal, _, _ = stacked
    flags = parse_flags(candidate.engine_args)
    given = chunk_given(candidate.engine_args, BATCH_FLAGS.get(candidate.engine, ""))
    settings = settings._replace(
        eager=EAGER_FLAGS[candidate.engine] in flags and bool(EAGER_FLAGS[candidate.engine]),
        marlin=flags.get("--moe-backend") == "marlin" or flags.get("--linear-backend") == "marlin",
        batch_tokens=given or min(settings.batch_tokens, limits.batch_tokens or settings.batch_tokens),
        kv_dtype=flags.get(KV_FLAG, sized.kv_dtype),
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
                "memory_fraction": fraction,
                "batch_tokens": None if given else _batch_tokens(stacked, settings, context, concurrency),
            }
        ),
        sized,
        settings,
    )


def _batch_tokens(stacked: StackedProposal, settings: Settings, context: int, concurrency: int) -> int | None:
    """Tokens of a prefill step to pass to the engine; None if they are its default on any Spark."""
    if settings.engine != "vllm" and settings.batch_tokens == own_chunk(settings.engine):
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


def _predicted(
    stacked: StackedProposal, candidate: Candidate, sized: Sizing, settings: Settings, verdict: Judgement
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
        concurrency=sized.concurrency,
        accepted=alone.accepted if proposal.speculation.method != "none" else None,
        check_ttft_ms=_times(check.ttft_ms, 1 / verdict.factor("ttft")),
        check_decode_tps=_times(check.decode_tps_per_request, slower),
    )
    value = worth(case, proposal, settings, sized.sizes) * slower * doubt(case, stack, proposal, verdict)
    proof = evidence_of(case, proposal)
    rung = Rung(
        candidate=candidate,
        prediction=prediction,
        reason="",
        worth=value,
        published=_published(proof),
        rules=tuple(finding.rule.id for finding in verdict.required_by),
        notes=(
            *_at_the_edge(stacked, sized),
            *_notes(case, stack, proposal, verdict),
            *_flag_faults(candidate, case.variant.engine_args),
        ),
        said=in_words(case.variant.engine_args),
    )
    return Evaluation(
        proposal,
        rung,
        value,
        (),
        verdict.penalties,
        worth(case, proposal, settings, sized.sizes, published=False) * slower,
    )


def _at_the_edge(stacked: StackedProposal, sized: Sizing) -> Iterator[str]:
    """The warning on a candidate that is planned because nothing with more room is left."""
    if stacked.case.edge:
        needs = sized.needs
        yield (
            f"at the edge of the memory: {gib(needs.mid, exact=True)} are expected, {needs.low / GIB:.1f} at least,"
            f" and {stacked.room.at_most / GIB:.1f} leave the host {FLOOR / GIB:.0f};"
            " it may swap, or run out of memory at its start"
        )


def _flag_faults(candidate: Candidate, given: tuple[str, ...]) -> Iterator[str]:
    """Flags and values of the deployment that the engine does not take, as far as its release is known.

    Those that rules and images add are not judged: they are known to be flags of that build.
    """
    for one in flag_faults(candidate.engine, candidate.engine_version, parse_flags(given)):
        yield f"{one.words(candidate.engine, candidate.engine_version)}: the engine may refuse to start"


def _notes(case: VariantContext, stack: Stack, proposal: Proposal, verdict: Judgement) -> Iterator[str]:
    for finding in (*verdict.penalties, *verdict.warnings):
        dispute = f": {finding.rule.dispute}" if finding.rule.dispute else ""
        yield f"{finding.rule.title} ({finding.rule.id}){dispute}"
    for finding in verdict.doubts:
        serious = finding.rule.severity in ("garbage", "fails") and finding.rule.effect.do == "reject"
        if serious and not _seen_to_work(case, stack, proposal):
            unknown = ", ".join(name.replace("_", " ") for name in finding.unknown)
            yield f"may apply ({unknown} not known): {finding.rule.title} ({finding.rule.id})"
    prompts = verdict.limits.prompt_tokens
    if prompts is not None and prompts < (case.variant.context or DEFAULT_CONTEXT):
        cause = next(one for one in verdict.required_by if _limits_of(one).prompt_tokens == prompts)
        yield f"takes prompts of at most {prompts} tokens ({cause.rule.id})"
    yield from _unpublished(case, stack, proposal)
    if assumed := case.predictor.drafter(proposal.speculation).assumed:
        yield assumed
    own_head = proposal.speculation.method in ("mtp", "nextn") and proposal.speculation.draft is None
    if own_head and not declared_heads(case.predictor.checkpoint):
        yield "the config declares no MTP head: published runs of this model have one; known after the download"
    if noncommercial := _noncommercial(case, proposal):
        yield noncommercial
    if "vision" in case.spec.needs and case.predictor.checkpoint.vision is None:
        yield "the weights may lack the vision tower: known only after the download"


def _published(proof: Evidence) -> PublishedRuns:
    """The nearest published runs, as plans have them."""
    return PublishedRuns(
        rows=sum(one.rows for one in proof.nearest),
        sources=tuple(dict.fromkeys(source for one in proof.nearest for source in one.sources)),
        same=proof.level <= EvidenceLevel.SIBLING,
        alone=next((one.alone for one in proof.nearest if one.alone and one.nodes == proof.nodes), None),
    )


def _unpublished(case: VariantContext, stack: Stack, proposal: Proposal) -> Iterator[str]:
    """The note on a candidate that nobody has published, with the nearest that somebody has."""
    method, ranks = proposal.speculation.method, proposal.split.ranks
    drafting = "without drafts" if method == "none" else f"with {method.upper()}"
    where = f"on {ranks} node{'s' if ranks > 1 else ''}"
    found = proof_of(case, proposal)
    if found.level is EvidenceLevel.FORMAT:
        if not found.runs:
            yield f"nobody has published rates of this, only gains or acceptance {drafting}"
            return
        formats = " and ".join(dict.fromkeys(one.format.upper() for one in found.nearest))
        yield f"nobody has published this format {drafting} {where}: others ran the family in {formats}"
    elif found.level > EvidenceLevel.FORMAT:
        yield f"nobody has published this: {ENGINE_LABELS[proposal.engine]} {drafting} {where} for models of this shape"
    elif proves(stack, method) is False:
        yield f"no published measurement of {method.upper()} on {stack.name}; there are some on other images"


def _noncommercial(case: VariantContext, proposal: Proposal) -> str:
    """The warning on a draft whose licence forbids commercial use; "" on any other."""
    name = proposal.speculation.draft
    given = license_of_draft(name, case.predictor.drafts) if name else ""
    if "-nc" not in given:
        return ""
    return f"the draft {name} is under {given}: not for commercial use; `license: open` excludes it"


def _seen_to_work(case: VariantContext, stack: Stack, proposal: Proposal) -> bool:
    """The image served this quantisation and this method: what its unknown versions might mean is answered."""
    known = stack.known
    proven = known is not None and known.status == "works" and quant_of(case) in known.quants
    return proven and proposal.split.ranks == 1 and proves(stack, proposal.speculation.method) is True


def _times(band: Band | None, factor: float) -> Band | None:
    # Measurements include the effect of slowing rules.
    if band is None or factor == 1.0 or band.provenance is Provenance.MEASURED:
        return band
    update = {"low": band.low * factor, "mid": band.mid * factor, "high": band.high * factor}
    return band.model_copy(update=update)
