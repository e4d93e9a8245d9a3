"""Ranks proposals: the objective's value of the predicted speed, held against what was published of it. Pure.

Worth of a candidate = value of its predicted speed, corrected by what was published of the same combination (worth)
                       × a discount for what nobody published, and for reports without a number (doubt)
                       × a discount for wrong results, and for prefills that repeat earlier turns (risk.py)
For the objective *context* the context comes first, and this decides between equal ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sparkfleet.knowledge.models.model_names import plain
from sparkfleet.knowledge.models.speculators import PublishedDrafting, drafting_published
from sparkfleet.knowledge.published.evidence import Evidence, EvidenceLevel, RunKey, evidence
from sparkfleet.knowledge.rules.rules import Penalise
from sparkfleet.perf.draft_methods import speed_method
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.rates import Rates
from sparkfleet.perf.prediction import Speculation
from sparkfleet.perf.workload import ANSWER
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, VariantCase
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.rules.judgement import RuleJudgement
from sparkfleet.specs.model_name import base_name

DEMOTION = 0.75
"""Discount of a candidate that a report calls slow without a number. Affects the ranking, not the predictions."""
CONTEXT_FIRST = 1e3
"""Worth of a token of context for the objective `context`: one token is more than any speed (answers per second)."""
SPREAD_GAIN = 1.15
"""Times as fast as on half the nodes a candidate has to be if the others are idle: what two boots differ by (± 15 %)."""
NOT_PUBLISHED = PublishedDrafting(None, None)
KEPT = 0.95
"""Share of the total rate at the concurrency that a deployment sets which more nodes have to keep."""


class SizedProposal(NamedTuple):
    """A proposal of a variant with its engine settings and its sizes."""

    case: VariantCase
    proposal: Proposal
    settings: EngineSettings
    sizes: Sizes

    def rates(self, requests: int) -> Rates:
        """The speed with so many requests at once in one group."""
        return self.case.predictor.rates(self.proposal.split, self.settings, self.sizes.context, requests)


def worth(sized: SizedProposal, factor: float, discount: float = 1.0, *, sound: float = 1.0) -> float:
    """Value of a proposal under the objective. Only comparable within one deployment, between equal objectives.

    Nodes cost nothing here: those that other deployments need are not offered (`VariantCase.share`), and how much faster
    more of them have to be is decided when candidates on different numbers of nodes are compared (`spread`).

    Args:
        sized: the proposal.
        factor: on the predicted rate, by what was published (`published_factor`); 1: the prediction alone.
        discount: on the value of its speed.
        sound: on the length of its context, which no evidence about speeds makes shorter: less than 1 for wrong results.
    """
    value = speed_worth(sized, factor) * discount
    return value if sized.case.objective != "context" else sized.sizes.context * CONTEXT_FIRST * sound + value


def speed_worth(sized: SizedProposal, factor: float) -> float:
    """Value of a proposal's speed: tok/s of all requests for `throughput`, else answers per second of one request."""
    if sized.case.objective == "throughput":
        return total(sized, best_groups(sized)) * factor
    alone = sized.rates(1)
    ttft = alone.ttft_ms.mid / 1000 if alone.ttft_ms else 0.0
    return 1.0 / (ttft + ANSWER / (alone.decode_tps_per_request.mid * factor))


def is_less(case: VariantCase, value: float, promised: float) -> bool:
    """True if a worth is less than was promised, by more than the order of candidates depends on."""
    return value < promised * (1 - (1e-12 if case.objective == "context" else 1e-3))


def total(sized: SizedProposal, groups: int) -> float:
    """Tokens per second of all requests of the deployment, distributed over so many groups as evenly as they can be.

    A group decodes at most as many together as it is sized to; the others wait. If their number is open, each group is full.
    Fewer groups than there are nodes for would be sized for a larger share.
    """
    if sized.case.is_load_open:
        return groups * sized.rates(sized.sizes.concurrency).decode_tps_aggregate.mid
    is_set = sized.case.variant.replicas is not None or sized.case.variant.concurrency is None
    most = sized.sizes.concurrency if is_set else sized.case.concurrency
    each, with_one_more = divmod(sized.case.concurrency, groups)
    counts = ((groups - with_one_more, each), (with_one_more, each + 1))
    return sum(
        number * sized.rates(min(requests, most)).decode_tps_aggregate.mid
        for number, requests in counts
        if number and requests
    )


def best_groups(sized: SizedProposal) -> int:
    """Number of groups with the highest total rate, fewer if equal; the deployment's own if it sets `replicas`."""
    if sized.case.variant.replicas is not None:
        return sized.case.variant.replicas
    most = sized.case.groups(sized.proposal.split.ranks)
    return max(range(1, most + 1), key=lambda groups: (total(sized, groups), -groups))


def published_factor(sized: SizedProposal) -> float:
    """Factor on the predicted rate by what was published: rates of the same combination, or on another engine; else those of
    the family in this format by other methods, times gains, or acceptance.

    A gain is the rate with drafts over that without on one box, acceptance the tokens of a step; each counts half (log).
    """
    case, proposal = sized.case, sized.proposal
    busy = case.objective == "throughput"
    if is_measured(case, proposal, exactly=True):
        return 1.0  # the prediction follows what was measured here
    found = evidence_of(case, proposal)
    same = found.correction(busy=busy)
    if same is not None:
        return same
    there = found.elsewhere(busy=busy)
    if there is not None:
        return there[0] * _by_half(sized, there[1])
    usual = evidence().usual_engine(speed_method(proposal.speculation.method))
    unproven = usual and found.level > EvidenceLevel.FORMAT and proposal.engine not in (usual, "custom")
    # It never raises: an engine that becomes the usual one by one more publication must not lose by that.
    engine = min(1.0, _by_half(sized, usual)) if unproven else 1.0
    return engine * found.shared_correction(busy=busy) * _drafting_factor(sized)


def on_nodes_of(more: SizedProposal, fewer: SizedProposal) -> SizedProposal:
    """The same engine, method and sizes on the nodes of a proposal on fewer."""
    narrow = fewer.proposal
    return more._replace(proposal=more.proposal._replace(split=narrow.split, pool=narrow.pool))


def _by_half(sized: SizedProposal, engine: str) -> float:
    """Factor that halves (log) how much faster a proposal is predicted than on an engine on which its method was published.

    Nobody has published that difference: head-to-heads of engines go either way.
    """
    requests = _requests(sized)
    there = sized._replace(settings=sized.settings._replace(engine=engine, release=""))
    own, other = sized.rates(requests), there.rates(requests)
    return math.sqrt(other.decode_tps_aggregate.mid / own.decode_tps_aggregate.mid)


def _drafting_factor(sized: SizedProposal) -> float:
    """Factor on the predicted rate by published gains or acceptance of the method with this model."""
    requests, proposal = _requests(sized), sized.proposal
    publication = (
        NOT_PUBLISHED if proposal.speculation.method == "none" else _drafting(sized.case, proposal, requests)
    )
    if publication == NOT_PUBLISHED:
        return 1.0
    drafted = sized.rates(requests)
    if sized.case.predictor.acceptance(proposal.speculation) is not None:
        return 1.0  # published gains and acceptance are those of other texts
    if publication.gain is None:
        return math.sqrt((publication.length or drafted.accepted) / drafted.accepted)
    bare = sized._replace(settings=sized.settings._replace(speculation=Speculation())).rates(requests)
    predicted = drafted.decode_tps_aggregate.mid / bare.decode_tps_aggregate.mid
    return math.sqrt(publication.gain / predicted)


def _requests(sized: SizedProposal) -> int:
    """Requests at once whose speed is compared with published ones."""
    return sized.sizes.concurrency if sized.case.objective == "throughput" else 1


def is_measured(case: VariantCase, proposal: Proposal, *, exactly: bool = False) -> bool:
    """True if the user measured a proposal's engine, split and method here; `exactly`: with as many draft tokens."""
    wanted = proposal.speculation
    method = speed_method(wanted.method)
    return any(
        (one.engine, one.tp, one.pp, one.dcp)
        == (proposal.engine, proposal.split.tp, proposal.split.pp, proposal.split.dcp)
        and speed_method(one.method) == method
        and (not exactly or one.k == wanted.tokens)
        for one in case.predictor.measurements
    )


def proof_of(case: VariantCase, proposal: Proposal) -> Evidence:
    """Published runs that speak for a proposal; the user's own measurement of it is as good as any."""
    return Evidence(EvidenceLevel.MODEL) if is_measured(case, proposal) else evidence_of(case, proposal)


def evidence_of(case: VariantCase, proposal: Proposal) -> Evidence:
    """Published runs that speak for a proposal."""
    method = speed_method(proposal.speculation.method)
    split = proposal.split
    predictor, model = case.predictor, plain(base_name(case.variant.model))
    found = evidence().of(
        RunKey(model, predictor.shape.family, proposal.engine, method, predictor.format, split.ranks)
    )
    if split.pp > 1:  # published are tensor parallel ranks; a pipeline of as many is another thing
        levels = tuple(max(one, EvidenceLevel.FORMAT) for one in found.levels)
        return found._replace(level=max(found.level, EvidenceLevel.FORMAT), levels=levels)
    if found.level > EvidenceLevel.FORMAT and proposal.speculation.method != "none":
        publication = _drafting(case, proposal, case.load(split.ranks))
        if publication != NOT_PUBLISHED:  # somebody ran it, who published no rate
            return found._replace(level=EvidenceLevel.FORMAT)
    return found


def _drafting(case: VariantCase, proposal: Proposal, requests: int) -> PublishedDrafting:
    speculation, model = proposal.speculation, base_name(case.variant.model)
    if proposal.engine == "custom":
        return NOT_PUBLISHED
    return drafting_published(
        model,
        proposal.engine,
        speculation.method,
        speculation.tokens,
        requests=requests,
        content=case.predictor.content,
    )


def doubt(case: VariantCase, stack: Stack, proposal: Proposal, verdict: RuleJudgement) -> float:
    """Discount for evidence without a number."""
    factor = stack.evidence * proof_of(case, proposal).discount(busy=case.objective == "throughput")
    for finding in verdict.penalties:
        then = finding.rule.then
        if not isinstance(then, Penalise) or then.prefilled_again:
            continue
        if then.factor is None and then.metric == "decode_tps":
            factor *= DEMOTION
    return factor


def required_gain(nodes: int, fewer: int) -> float:
    """Times as fast on so many nodes as on fewer a candidate has to be."""
    return math.pow(SPREAD_GAIN, math.log2(nodes / fewer)) if nodes > fewer else 1.0
