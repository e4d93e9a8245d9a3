"""Decides between fewer and more nodes for one variant, and puts the alternative into words. Pure.

Nodes that no other deployment needs cost nothing: more of them are taken if the answer comes faster by more than two boots
differ, and no throughput that was asked for is lost.
"""

from __future__ import annotations

from sparkfleet.knowledge.published.evidence import CLOSE, EvidenceLevel
from sparkfleet.knowledge.published.figures import ComparedFigure, pair_of
from sparkfleet.perf.prediction import Split
from sparkfleet.planner.capacity.proposal import Proposal, VariantCase
from sparkfleet.planner.capacity.sizing import quant_of
from sparkfleet.planner.place.fleet_map import GROUP_SIZES
from sparkfleet.planner.place.stacks import images_by_name
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.objective import (
    KEPT,
    evidence_of,
    is_measured,
    on_nodes_of,
    proof_of,
    published_factor,
    required_gain,
    speed_worth,
    worth,
)
from sparkfleet.planner.types.plan import Rung
from sparkfleet.units import three_digits


def reason_to_stay(case: VariantCase, fewer: Evaluation, more: Evaluation) -> str:
    """Reason to stay on fewer nodes; "" if more are worth it.

    Args:
        case: the variant.
        fewer: the best on fewer nodes.
        more: the best on more.
    """
    narrow, wide = fewer.rung, more.rung
    if case.objective == "context" and narrow.candidate.context != wide.candidate.context:
        return "" if more.worth > fewer.worth else "holds no longer context"
    ranks, nodes = (one.candidate.shape.ranks for one in (narrow, wide))
    gain = more.predicted / fewer.predicted
    by_wide, by_narrow = _used(case, nodes, ranks)
    carried = carry_evidence(fewer, more)
    ratio = _corrected(carried) / _corrected(fewer)
    if by_wide <= by_narrow and ratio > 1.0:
        return ""  # wider groups on the same nodes: what was published decides, as between two proposals
    required = required_gain(by_wide, by_narrow)
    # The line of the alternative has the rate of decoding; this is the prompt and the answer together.
    if gain < 1.0:
        return "the whole answer is slower"
    if gain < required:
        return (
            f"the whole answer {gain:.2f}×, within the {required:.2f}× by which two boots of one plan differ"
        )
    if ratio < required:
        # What the prediction would have to be for the evidence of both to suffice.
        needed = gain * required / ratio
        against = _evidence_against(fewer, carried, required)
        return f"the whole answer is {gain:.2f}× as fast, {needed:.2f}× would be required: {against}"
    return _lost(case, narrow, wide)


def carry_evidence(fewer: Evaluation, more: Evaluation) -> Evaluation:
    """The candidate on more nodes, with evidence from fewer. For one request its rate is corrected by at least the factor on
    those, if engine and method are the same, and measurements on fewer nodes count as its proof.

    A source's rates differ from the prediction by its texts and its build, on one node as on two. That it published none of
    two nodes, or that only another source did, is therefore no evidence against two. The published gain of a doubling is
    1.13 times the predicted one in the mean of 15 pairs of one source each, and 0.89 times at worst
    (`scripts/evidence.py --doublings`): more nodes are one step, as another format is.
    """
    case = more.sized.case
    if case.objective == "throughput" or any(is_measured(case, one.proposal) for one in (fewer, more)):
        return more  # what the user measured has no correction
    there = on_nodes_of(more.sized, fewer.sized)
    factor = fewer.factor if is_alike(fewer.proposal, more.proposal) else published_factor(there)
    scaling = evidence_of(case, there.proposal).scaling(more.proposal.split.ranks)
    proof = max(more.proof, _proof_on_fewer(more))
    return more._replace(
        factor=max(more.factor, factor * scaling), discount=more.discount * proof / more.proof, proof=proof
    )


def _proof_on_fewer(more: Evaluation) -> float:
    """The discount of a candidate by measurements of its engine and method on fewer nodes: a step less, and one more if
    nobody ran these on as many nodes with any model."""
    case, split = more.sized.case, more.proposal.split
    if split.pp > 1:
        return 0.0  # published are tensor parallel ranks
    narrower = (more.proposal._replace(split=Split(n)) for n in GROUP_SIZES if n < split.ranks)
    best = max((proof_of(case, one).discount(busy=False) for one in narrower), default=0.0)
    steps = 2 if evidence_of(case, more.proposal).level is EvidenceLevel.NOTHING else 1
    return best / CLOSE**steps


def is_alike(one: Proposal, other: Proposal) -> bool:
    """True if two proposals have the same engine and method."""
    return (one.engine, one.speculation.method) == (other.engine, other.speculation.method)


def weighed_with(fewer: Evaluation, more: Evaluation) -> Evaluation:
    """A candidate on more nodes with its worth among others on as many, given what was published on fewer.

    A rate that was published on as many nodes decides there, whatever was published on fewer.
    """
    carried = carry_evidence(fewer, more)
    own = evidence_of(more.sized.case, more.proposal).correction(busy=False)
    factor = carried.factor if own is None else more.factor
    return carried._replace(worth=worth(more.sized, factor, carried.discount, sound=more.sound))


def _corrected(one: Evaluation) -> float:
    """Worth of a candidate's speed by its factor; of those that are compared here the contexts are equal."""
    return speed_worth(one.sized, one.factor) * one.discount


def _evidence_against(fewer: Evaluation, more: Evaluation, required: float) -> str:
    """Evidence for fewer nodes: a rule against more, the number of measurements, or a published rate."""
    sound = _corrected(more) / more.risk
    if more.risk_words and sound >= required * _corrected(fewer):
        return more.risk_words
    uncorrected = (speed_worth(one.sized, 1.0) * one.discount for one in (more, fewer))
    if next(uncorrected) < required * next(uncorrected):
        rows = more.rung.published.rows
        measured = f"{rows or 'no'} published measurement{'s' * (rows != 1)}"
        return (
            f"{measured}{_place_of(more.rung)}, {fewer.rung.published.rows or 'none'}{_place_of(fewer.rung)}"
        )
    if fewer.rung.candidate.how != more.rung.candidate.how:
        return f"published rates favour {fewer.rung.candidate.how}"
    return f"published rates favour {sparks_words(fewer.rung.candidate.shape.ranks)}"


def _place_of(rung: Rung) -> str:
    """The format and the nodes of a rung's published measurements: " in another format on two Sparks"."""
    form = " in another format" if rung.published.rows and not rung.published.same else ""
    return f"{form} on {sparks_words(rung.candidate.shape.ranks)}"


def sparks_words(number: int) -> str:
    """A number of nodes in words, such as "two Sparks"."""
    return {1: "one Spark", 2: "two Sparks"}.get(number, f"{number} Sparks")


def _used(case: VariantCase, nodes: int, ranks: int) -> tuple[int, int]:
    """Nodes that are compared: of one group; for throughput those of all groups, which use what there is."""
    if case.objective != "throughput":
        return nodes, ranks
    return nodes * case.groups(nodes), ranks * case.groups(ranks)


def _lost(case: VariantCase, narrow: Rung, wide: Rung) -> str:
    """Reason if the requests at once that the deployment sets would be served more slowly together; else ""."""
    before, after = narrow.prediction.decode_tps_aggregate, wide.prediction.decode_tps_aggregate
    if case.objective == "throughput" or not case.variant.concurrency or before is None or after is None:
        return ""
    if case.variant.concurrency < 2 or after.mid >= KEPT * before.mid:
        return ""
    together = "together" if (case.variant.replicas or 1) == 1 else "together in each replica"
    requests = narrow.prediction.concurrency
    return f"{after.mid:.0f} instead of {before.mid:.0f} tok/s for {requests} requests {together}"


def published_contrast(fewer: Evaluation, more: Evaluation) -> str:
    """The published rates on two numbers of nodes: those of one source that ran both, and whether the ones that are shown
    can be compared; "" if nothing is published of both, or it agrees with the predictions.
    """
    case = more.sized.case
    if images_by_name(case.variant.model, quant_of(case)):
        return ""  # some runs are of builds that store its weights in other bits
    few, many = (sparks_words(one.proposal.split.ranks) for one in (fewer, more))
    alike = is_alike(fewer.proposal, more.proposal)
    pair = pair_of(*(evidence_of(case, one.proposal) for one in (fewer, more))) if alike else None
    words = []
    if pair is not None:
        words.append(
            f"published on both: {three_digits(pair.fewer)} on {few} and {three_digits(pair.more)} on {many},"
            f" {pair.more / pair.fewer:.2g}×, of {pair.checkpoint} ({pair.source})"
        )
    narrow, wide = (one.rung.published.figure for one in (fewer, more))
    if narrow is None or wide is None or not _contradicts(fewer, more, wide.tps / narrow.tps):
        return "; ".join(words)
    if (narrow.of, narrow.content) != (wide.of, wide.content):
        what = "checkpoints" if narrow.of != wide.of else "texts"
        words.append(
            f"the rates published apart, {three_digits(narrow.tps)} on {few} and {three_digits(wide.tps)} on {many},"
            f" are of two {what} and do not compare"
        )
    elif pair is None:
        words.append(
            f"published rates say otherwise: {three_digits(narrow.tps)} on {few}, {three_digits(wide.tps)} on {many}"
        )
    return "; ".join(words)


def _contradicts(fewer: Evaluation, more: Evaluation, published: float) -> bool:
    """True if so many times as fast on more nodes is the opposite of what is predicted."""
    rates = [one.rung.prediction.decode_tps_per_request for one in (fewer, more)]
    narrow, wide = (band.mid if band else 0.0 for band in rates)
    return (wide > narrow) != (published > 1.0)


def alternative_line(split: Split, tps: float, other: float, published: ComparedFigure | None = None) -> str:
    """The alternative and how to choose it: "two Sparks: 24.7 tok/s for one user, 1.5×: `parallel: {tp: 2}`".

    Args:
        split: its split.
        tps: its predicted rate of one request.
        other: that of the choice.
        published: the published rate with its checkpoint; None if there is none.
    """
    ways = (
        ", ".join(f"{name}: {n}" for name, n in zip(("tp", "pp"), split[:2], strict=True) if n > 1) or "tp: 1"
    )
    measured = f" ({published.words})" if published else ""
    return (
        f"{sparks_words(split.ranks)}: {three_digits(tps)} tok/s for one user{measured}, {tps / other:.2g}×:"
        f" `parallel: {{{ways}}}`"
    )
