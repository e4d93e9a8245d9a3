"""Evaluates a proposal: applies the rules, changes it as they require, predicts its memory and speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sparkfleet.knowledge.published.evidence import EvidenceLevel
from sparkfleet.knowledge.published.figures import nearest_figure
from sparkfleet.knowledge.rules.rules import RuleLimits
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.planner.capacity.kv_disk import PROMPT, able_stacks
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import (
    quant_of,
    settings_of,
    size_proposal,
    tight_sizes,
)
from sparkfleet.planner.capacity.too_large import too_large
from sparkfleet.planner.engine_args.user_overrides import in_words
from sparkfleet.planner.place.stacks import Stack, in_order, may_requantize
from sparkfleet.planner.rules.judgement import RuleJudgement, RuleMatch, rejections
from sparkfleet.planner.search.candidate_builder import (
    StackedProposal,
    name_of,
)
from sparkfleet.planner.search.notes import notes_of
from sparkfleet.planner.search.objective import (
    SizedProposal,
    doubt,
    evidence_of,
    proof_of,
    published_factor,
    speed_worth,
    worth,
)
from sparkfleet.planner.search.risk import UNCURED, repeated_prefill, risk_factor
from sparkfleet.planner.search.rule_effects import (
    allows,
    budget_within,
    exceeded_limit,
    with_required_flags,
    within_limits,
)
from sparkfleet.planner.types.plan import Candidate, Rejection, Rung
from sparkfleet.planner.types.rung_facts import PublishedRuns
from sparkfleet.specs.model_name import base_name

STACKS_TRIED = 6
"""Images that are tried per proposal, best evidence first."""


class Evaluation(NamedTuple):
    """A proposal that the rules let pass, with its predictions."""

    proposal: Proposal
    rung: Rung
    worth: float
    sized: SizedProposal
    slowed_by: tuple[RuleMatch, ...] = ()
    """Rules that slow it, or rank it lower."""
    risk: float = 1.0
    """The part of `discount` by wrong results and prefills that repeat earlier turns (`risk_factor`)."""
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
    def sound(self) -> float:
        """Discount for wrong results, which counts against a longer context as well."""
        return UNCURED if self.rung.uncured else 1.0

    @property
    def needs(self) -> Band:
        """Bytes per rank."""
        return self.rung.prediction.memory_bytes_per_rank

    @property
    def risk_words(self) -> str:
        """The rule by which it is ranked lower, whatever its speed and its evidence; "" if there is none."""
        uncured = (one for one in self.slowed_by if one.rule.id in self.rung.uncured)
        lost = (one for one in self.slowed_by if one.prefilled_again)
        rule = next((one.rule for one in (*uncured, *lost)), None)
        if rule is None:
            return ""
        switched = self.rung.repeated_prefill if not self.rung.uncured else None
        return f"{rule.title} (`sparkfleet explain {switched.rule if switched else rule.id}`)"

    def with_note(self, note: str) -> Evaluation:
        """The same with one more note on its rung."""
        return self._replace(rung=self.rung.model_copy(update={"notes": (*self.rung.notes, note)}))


def evaluate(
    case: VariantCase, proposal: Proposal, stacks: Sequence[Stack], room: MemoryBudget
) -> tuple[Evaluation | None, list[Rejection]]:
    """The proposal on the first stack that the rules let pass, None if there is none; and why not on those before it.

    Stacks after one that is known to compute wrong results are tried, too: a sound one is taken instead if it is worth more.
    """
    faulty: Evaluation | None = None
    able, rejected = able_stacks(case.variant, in_order(stacks, proposal.speculation))
    tried = able[:STACKS_TRIED]
    for stack in tried:
        if faulty is not None and not stack.version:
            continue  # no rule about versions finds it: that it is sound is not known
        settings = settings_of(case, proposal, stack)
        sized = size_proposal(case, proposal, room, settings)
        if sized.verdict == "no" and not sized.spare:
            rejected.append(too_large(case, proposal, sized, room))
            if settings.disk_tables or not any(one.disk_tables(case.predictor.checkpoint) for one in tried):
                break  # no other stack needs less
            continue
        found = _ruled(StackedProposal(case, proposal, stack, room), sized, settings)
        if isinstance(found, Evaluation):
            if not found.rung.uncured and (faulty is None or found.worth > faulty.worth):
                return found, rejected + ([passed_over(faulty)] if faulty else [])
            faulty = faulty or found
        else:
            rejected += found
    return faulty, rejected


def passed_over(faulty: Evaluation) -> Rejection:
    """The rejection of a candidate that computes wrong results, if another image does not."""
    rule = next(one.rule for one in faulty.slowed_by if one.rule.id in faulty.rung.uncured)
    return Rejection(
        what=name_of(faulty.rung.candidate), why="rule", rule=rule.id, source=rule.sources[0],
        reason=f"{rule.title}; another release has no such report",
    )  # fmt: skip


def _ruled(stacked: StackedProposal, sized: Sizing, settings: EngineSettings) -> Evaluation | list[Rejection]:
    """The evaluation with the flags and limits that rules require; rejections if it is not allowed or has no room."""
    case, proposal, _, _ = stacked
    candidate, verdict, contested = with_required_flags(stacked, sized, settings.batch_tokens)
    if verdict.rejected:
        by_rules = rejections(verdict, name_of(candidate))
        return [one.model_copy(update={"why": "rule"}) for one in by_rules]
    against = exceeded_limit(case, candidate, verdict.limits, verdict.required_by)
    if against is not None:
        return [against]
    candidate, limited, changed_settings = within_limits(stacked, candidate, sized, settings, verdict.limits)
    if limited.verdict == "no":
        most = budget_within(stacked, limited.needs, verdict.limits)
        smaller = _smaller(stacked, candidate, most, changed_settings, limited)
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


def _smaller(
    stacked: StackedProposal,
    candidate: Candidate,
    room: MemoryBudget,
    settings: EngineSettings,
    sized: Sizing,
) -> Sizing:
    """The first sizes below those that have no room within what rules require; they end with the smallest.

    Larger ones are preferred for which the rules do not hold: they may be about shares of the memory above a bound.
    """
    case, proposal = replace(stacked.case, most=Sizes(sized.context, sized.concurrency)), stacked.proposal
    within = size_proposal(case, proposal, room, settings)
    if within.verdict == "fits":
        return within
    for one in tight_sizes(case, proposal, stacked.room, settings):
        sizes = (one.sizes, one.kv_dtype)
        if within.verdict != "no" and sizes == (within.sizes, within.kv_dtype):
            break
        if sizes != (sized.sizes, sized.kv_dtype) and allows(case, candidate, proposal, one):
            return one
    return within


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
    ranked = SizedProposal(case, proposal, settings, sized.sizes)
    slower = verdict.factor("decode_tps")
    repeated = repeated_prefill(ranked, verdict, candidate.engine_args)
    risk = risk_factor(ranked, verdict, repeated)
    discount = slower * risk * doubt(case, stack, proposal, verdict)
    factor = published_factor(ranked)
    value = worth(ranked, factor, discount, sound=UNCURED if verdict.uncured else 1.0)
    rung = Rung(
        candidate=candidate,
        prediction=_prediction(stacked, sized, settings, verdict),
        reason="",
        uncured=tuple(finding.rule.id for finding in verdict.uncured),
        repeated_prefill=repeated,
        worth=value,
        published=_published(case, proposal, sized.concurrency),
        rules=tuple(finding.rule.id for finding in verdict.required_by),
        notes=tuple(notes_of(stacked, candidate, sized, verdict)),
        pinned=in_words(case.variant.engine_args),
    )
    return Evaluation(
        proposal,
        rung,
        value,
        ranked,
        slowed_by=(*verdict.uncured, *verdict.penalties),
        risk=risk,
        predicted=speed_worth(ranked, 1.0) * slower,
        factor=factor,
        discount=discount,
        proof=proof_of(case, proposal).discount(busy=case.objective == "throughput"),
    )


def _prediction(
    stacked: StackedProposal, sized: Sizing, settings: EngineSettings, verdict: RuleJudgement
) -> Prediction:
    """Memory and speed of a sized proposal, slowed by the factors of rules."""
    case, proposal, _, _ = stacked
    split, checkpoint = proposal.split, case.predictor.checkpoint
    alone = case.predictor.rates(split, settings, sized.context, 1)
    many = case.predictor.rates(split, settings, sized.context, sized.concurrency)
    check = case.predictor.check(split, settings)
    slower, later = verdict.factor("decode_tps"), 1 / verdict.factor("ttft")
    return Prediction(
        memory_bytes_per_rank=sized.needs,
        memory_parts=sized.parts,
        verdict=sized.verdict,
        weights_bytes=checkpoint.bytes_on_disk,
        weights_estimated=not checkpoint.weights_known,
        ttft_ms=_times(alone.ttft_ms, later),
        decode_tps_per_request=_times(alone.decode_tps_per_request, slower),
        decode_tps_aggregate=_times(many.decode_tps_aggregate, slower),
        prefill_tps=_times(alone.prefill_tps, verdict.factor("prefill_tps")),
        prompt=min(2048, max(1, sized.context // 2)),
        long_prompt_ms=_long_prompt(stacked, settings, sized),
        concurrency=sized.concurrency,
        accepted=alone.accepted if proposal.speculation.method != "none" else None,
        check_ttft_ms=_times(check.ttft_ms, later),
        check_decode_tps=_times(check.decode_tps_per_request, slower),
    )


def _published(case: VariantCase, proposal: Proposal, requests: int) -> PublishedRuns:
    """The nearest published runs, as plans have them.

    Args:
        case: the variant.
        proposal: the candidate. If some runs are of builds that store its weights in other bits, their rates are not its.
        requests: requests at once that it is predicted for.
    """
    proof = evidence_of(case, proposal)
    find = partial(nearest_figure, proof, base_name(case.variant.model), case.predictor.content)
    mixed = may_requantize(case.variant.model, quant_of(case), proposal.engine)
    figure = None if mixed else find()
    return PublishedRuns(
        rows=sum(one.rows for one in proof.nearest),
        sources=tuple(dict.fromkeys(source for one in proof.nearest for source in one.sources)),
        same=proof.level <= EvidenceLevel.SIBLING,
        alone=figure.tps if figure else None,
        figure=figure,
        together=None if mixed or requests < 2 else find(requests=requests),
    )


def _times(band: Band | None, factor: float) -> Band | None:
    # Measurements include the effect of slowing rules.
    if band is None or factor == 1.0 or band.provenance is Provenance.MEASURED:
        return band
    update = {"low": band.low * factor, "mid": band.mid * factor, "high": band.high * factor}
    return band.model_copy(update=update)
