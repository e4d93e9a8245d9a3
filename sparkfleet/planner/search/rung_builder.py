"""Turns an evaluated proposal into a rung of a ladder: its numbers, and the reason for its place. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sparkfleet.knowledge.engines.advisories import advisories_of
from sparkfleet.planner.capacity.proposal import Proposal, VariantCase
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.objective import SPREAD_GAIN, proof_of
from sparkfleet.planner.search.spread import sparks_words
from sparkfleet.planner.types.plan import Rung
from sparkfleet.specs.deployment import Objective

OBJECTIVES: dict[Objective, str] = {
    "interactive": "fastest answer to one request",
    "throughput": "highest total throughput",
    "context": "holds the longest context",
}
"""The quality in which the choice is best, as plans show it."""

ALIKE = 1.02
"""Times as fast below which a whole answer is not called faster: the next fit moves predictions by 1 to 2 %."""
NOTABLE = 1.05
"""Times as fast from which on a rung that decodes faster, though its whole answer is no faster, is worth a line."""

ADVISORY = "its release has a published security advisory (`sparkfleet explain security-advisory`)"


def tps_alone(evaluation: Evaluation) -> float:
    """Predicted tokens per second of one request alone, 0 if that is not known."""
    band = evaluation.rung.prediction.decode_tps_per_request
    return band.mid if band else 0.0


def advisories_against(evaluation: Evaluation) -> tuple[str, ...]:
    """Ids of the published security advisories of its engine's release; none if its version is not known."""
    return advisories_of(evaluation.rung.candidate.engine, evaluation.rung.candidate.engine_version)


def is_clear(evaluation: Evaluation) -> bool:
    """True if the version of its engine is known, and no advisory against it is."""
    return bool(evaluation.rung.candidate.engine_version) and not advisories_against(evaluation)


def without_advisory_first(
    ladder: list[Evaluation], may_lead: Callable[[Evaluation], bool]
) -> list[Evaluation]:
    """The ladder with a release without a known security advisory first, if that costs no more than two boots differ by.

    It has to be published for the family, and of a known version: advisories against an unknown one cannot be known.
    """
    first = ladder[0]
    if not advisories_against(first):
        return ladder
    for one in ladder[1:]:
        published = one.rung.published.rows > 0
        if published and SPREAD_GAIN * one.worth >= first.worth and is_clear(one) and may_lead(one):
            return [one, *(other for other in ladder if other is not one)]
    return ladder


def because(proposal: Proposal, choice: Evaluation, tps: float, ours: float, case: VariantCase) -> str:
    """Reason why a shape of more nodes is slower, or hardly faster; "" if there is none to give."""
    ranks, other = proposal.split.ranks, choice.proposal.split.ranks
    is_alike = proposal.engine == choice.proposal.engine and (
        proposal.speculation.method == choice.proposal.speculation.method
    )
    if proposal.split.ep > 1 and choice.proposal.split[:2] == proposal.split[:2]:
        effect = "no speed-up" if is_alike else "no faster than the same without EP"
        return f": EP reads as many bytes as TP here: {effect}"
    if ranks <= other:
        return ""
    if tps > 1.05 * ours:
        return f": {tps / ours:.2f}× as fast on {ranks / other:g}× the nodes"
    if tps >= ours:
        return f": hardly faster on {ranks // other if other else ranks}× the nodes"
    blocks = case.predictor.shape.layers.blocks + case.predictor.shape.layers.mixers
    link = proposal.pool.site.link
    # Otherwise the difference may be that of the engine or of the method.
    if is_alike and proposal.split.tp > 1 and link is not None:
        return f": {blocks} all-reduces a step over {link.latency_us:.0f} µs links cost more than the smaller reads save"
    return ""


def _with_depths(evaluation: Evaluation) -> Rung:
    """Rung of an evaluation with the steps of its draft's other depths."""
    candidate, sized = evaluation.rung.candidate, evaluation.sized
    settings = sized.settings._replace(speculation=candidate.speculation)
    depths = sized.case.predictor.depths(
        candidate.shape.split, settings, candidate.context, candidate.concurrency
    )
    prediction = evaluation.rung.prediction.model_copy(update={"depths": depths})
    return evaluation.rung.model_copy(update={"prediction": prediction})


def rung_of(
    evaluation: Evaluation,
    at: int,
    ladder: Sequence[Evaluation],
    objective: Objective,
    others: Sequence[str] = (),
) -> Rung:
    """The rung with the reason for its place in the ladder; `others`: lines with the choices on other numbers of nodes."""
    speed_of = _tps_together if objective == "throughput" else tps_alone
    choice = ladder[0]
    faster = [
        rung
        for rung in ladder
        if objective != "context"
        and speed_of(rung) > speed_of(choice) * (NOTABLE if _only_decodes_faster(rung, choice) else 1.0)
        and _differs(rung, choice, objective)
    ]
    if at == 0:
        next_best = [rung for rung in ladder[1:2] if rung in faster or _set_back(rung, choice)]
        fastest = max(faster, key=speed_of) if faster else None
        lower = [*next_best, *(rung for rung in ladder[2:] if rung is fastest)]
        words: Iterable[str] = (_ranked_lower(one, choice, objective, faster=one in faster) for one in lower)
        best = OBJECTIVES[objective]
        if others and objective == "interactive":  # one of them may be faster
            best += f" on {sparks_words(choice.rung.candidate.shape.ranks)}"
        if objective == "context":
            words = _faster_with_less(ladder)
        return _with_depths(evaluation).model_copy(update={"reason": "; ".join((best, *words, *others))})
    before = ladder[at - 1].rung
    is_faster = evaluation in faster and not _only_decodes_faster(evaluation, choice)
    more = f"; predicted faster than the choice, but {_doubt_of(evaluation, choice)}" if is_faster else ""
    if not more and at == 1 and _set_back(evaluation, choice):
        more = f"; ranked higher but for this: {ADVISORY}"
    return _with_depths(evaluation).model_copy(
        update={
            "reason": f"if {before.candidate.how} does not start{more}",
            "order": _order(at, ladder, objective, speed_of),
        }
    )


def _faster_with_less(ladder: Sequence[Evaluation]) -> Iterator[str]:
    """The fastest rung that decodes clearly faster than the choice and holds a shorter context, in words."""
    choice = ladder[0]
    held = choice.rung.candidate.context
    fastest = max((one for one in ladder if one.rung.candidate.context < held), key=tps_alone, default=choice)
    if tps_alone(fastest) > SPREAD_GAIN * tps_alone(choice):
        candidate, speed = fastest.rung.candidate, fastest.rung.speed("context")
        yield f"{candidate.how} is faster ({speed}) and holds {candidate.context}"


def _order(
    at: int, ladder: Sequence[Evaluation], objective: Objective, speed_of: Callable[[Evaluation], float]
) -> str:
    """Reason for a rung behind a clearly slower one, in a few words; "" if those before it are as fast."""
    one = ladder[at]
    slower = next(
        (i for i in range(1, at) if speed_of(one) > NOTABLE * speed_of(ladder[i]) and objective != "context"),
        None,
    )
    if slower is None:
        return ""
    return f"behind rung {slower + 1}: {_doubt_in_short(one, ladder[slower])}"


def _doubt_in_short(one: Evaluation, before: Evaluation) -> str:
    """`nobody has published it`, `published less (1, not 58 times)`, or the rule that counts against it."""
    against = next((id_ for id_ in _doubts(one) if id_ not in _doubts(before)), "")
    own, other = one.rung.published, before.rung.published
    if against:
        return f"{against} counts against it"
    if _set_back(one, before):
        return "security advisory"
    if own.same and own.rows >= other.rows:
        return "published rates favour that"
    if own.rows and own.same:
        return f"published less ({own.rows}, not {other.rows} times)"
    return "published less" if own.rows or not other.rows else "nobody has published it"


def _doubts(evaluation: Evaluation) -> tuple[str, ...]:
    """Ids of the rules by which a rung answers wrongly, or prefills earlier turns again: they lower its rank."""
    again = evaluation.rung.repeated_prefill
    return (*evaluation.rung.uncured, *((again.rule,) if again is not None else ()))


def _set_back(evaluation: Evaluation, choice: Evaluation) -> bool:
    """True if only a published security advisory of its release ranks it below the choice."""
    return evaluation.worth > choice.worth and bool(advisories_against(evaluation)) and is_clear(choice)


def _differs(evaluation: Evaluation, choice: Evaluation, objective: Objective) -> bool:
    """True if the two speeds are not the same as they are shown."""
    return evaluation.rung.speed(objective) != choice.rung.speed(objective)


def _tps_together(evaluation: Evaluation) -> float:
    """Predicted tokens per second of all requests of a group, 0 if that is not known."""
    band = evaluation.rung.prediction.decode_tps_aggregate
    return band.mid if band else 0.0


def _ranked_lower(evaluation: Evaluation, choice: Evaluation, objective: Objective, *, faster: bool) -> str:
    """A rung that is better than the choice by its prediction, or by what was published, with the reason for its rank."""
    how, speed = evaluation.rung.candidate.how, evaluation.rung.speed(objective)
    if faster and _only_decodes_faster(evaluation, choice):
        gain = _gain(evaluation, choice)
        whole = "is not" if round(gain, 2) <= 1.0 else "hardly is"
        return f"{how} decodes faster ({speed}), the whole answer {whole}: {gain:.2f}×"
    if faster:
        account = _account(evaluation, choice, objective)
        return (
            f"{how} is predicted faster ({speed}) but ranked lower: {_doubt_of(evaluation, choice)}{account}"
        )
    better = 100 * (evaluation.worth / choice.worth - 1)
    return f"{how} ({speed}), {better:.2g} % better by what was published, is ranked lower: {ADVISORY}"


def _gain(evaluation: Evaluation, choice: Evaluation) -> float:
    """Times as good as the choice under the objective, by prediction; 0 if that is not known."""
    return evaluation.predicted / choice.predicted if choice.predicted else 0.0


def _only_decodes_faster(evaluation: Evaluation, choice: Evaluation) -> bool:
    """True if its first word comes so much later that the whole answer, prompt included, is hardly faster."""
    return 0.0 < _gain(evaluation, choice) < ALIKE


def _account(evaluation: Evaluation, choice: Evaluation, objective: Objective) -> str:
    """The predicted gain over the choice, and the one that its evidence requires."""
    gain = _gain(evaluation, choice)
    if not gain:
        return ""
    what = "whole answer" if objective == "interactive" else "total"
    required = gain * choice.worth / evaluation.worth
    return f" (its {what} is {gain:.2f}× as fast, and would have to be {required:.2f}× to come first)"


def _doubt_of(evaluation: Evaluation, choice: Evaluation) -> str:
    """Reason for a rank below that of its predicted speed: a rule, or else what was published."""
    if evaluation.risk_words and evaluation.worth / evaluation.risk > choice.worth:
        return evaluation.risk_words
    if _set_back(evaluation, choice):
        return ADVISORY
    own, best = evaluation.rung.published, choice.rung.published
    if own.same and own.rows >= best.rows:
        return "published measurements favour the choice"
    if not own.rows and not best.rows:
        there = "on fewer Sparks" if _is_carried(choice) else "with other models"
        return f"fewer published measurements of it {there}"
    return "fewer published measurements"


def _is_carried(evaluation: Evaluation) -> bool:
    """True if measurements on fewer nodes count for it."""
    case = evaluation.sized.case
    return evaluation.proof > proof_of(case, evaluation.proposal).discount(
        busy=case.objective == "throughput"
    )


def moved(rung: Rung, nodes: tuple[str, ...], beside: Sequence[str]) -> Rung:
    """The rung on its nodes; `beside`: the deployments that are on them already."""
    shape = rung.candidate.shape.model_copy(update={"nodes": nodes})
    update: dict[str, object] = {"candidate": rung.candidate.model_copy(update={"shape": shape})}
    if beside:
        shared = f"shares memory bandwidth with {', '.join(beside)}: each is slower than predicted while both are busy"
        update["notes"] = (*rung.notes, shared)
    return rung.model_copy(update=update)
