"""Turns an evaluated proposal into a rung of a ladder: its numbers, and the reason for its place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.knowledge.rules.rules import Penalise
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.sizing import Proposal, VariantContext
from sparkfleet.planner.search.judge import Evaluation
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung
from sparkfleet.specs.deployment import Objective

OBJECTIVES: dict[Objective, str] = {
    "interactive": "fastest answer to one request",
    "throughput": "highest total throughput",
    "context": "holds the longest context",
}
"""The quality in which the choice is best, as plans show it."""

ServedVariant = tuple[list[GroupPlan], list[Rejection], list[str]]
"""Groups; what was rejected; the nearest things that would fit, if there are no groups."""


def nth(items: Sequence[tuple[str, ...]], at: int) -> tuple[str, ...]:
    """The item, () if there is none."""
    return items[at] if at < len(items) else ()


def needs_of(judged: Evaluation) -> Band:
    """Bytes per rank."""
    assert judged.rung is not None
    return judged.rung.prediction.memory_bytes_per_rank


def tps_alone(judged: Evaluation) -> float:
    """Predicted tokens per second of one request alone, 0 if that is not known."""
    assert judged.rung is not None
    band = judged.rung.prediction.decode_tps_per_request
    return band.mid if band else 0.0


def because(proposal: Proposal, choice: Evaluation, tps: float, ours: float, case: VariantContext) -> str:
    """Reason why a shape of more nodes is slower, or hardly faster; "" if there is none to give."""
    ranks, other = proposal.split.ranks, choice.proposal.split.ranks
    if proposal.split.ep > 1 and choice.proposal.split[:2] == proposal.split[:2]:
        return ": EP reads as many bytes as TP here: no speed-up"
    if ranks <= other:
        return ""
    if tps > 1.05 * ours:
        return f": {tps / ours:.2f}× as fast on {ranks / other:g}× the nodes"
    if tps >= ours:
        return f": hardly faster on {ranks // other if other else ranks}× the nodes"
    blocks = case.predictor.arch.layers.blocks + case.predictor.arch.layers.mixers
    link = proposal.pool.site.link
    if proposal.split.tp > 1 and link is not None:
        return f": {blocks} all-reduces a step over {link.latency_us:.0f} µs links cost more than the smaller reads save"
    return ""


def largest_of(rungs: Sequence[Rung]) -> float:
    """The largest need of a ladder's rungs, bytes per rank: their nodes must have room for every rung."""
    return max(rung.prediction.memory_bytes_per_rank.mid for rung in rungs)


def nodes_and_bytes_of(group: GroupPlan) -> tuple[tuple[str, ...], float]:
    """The nodes of a group, and the bytes that each of its ranks is counted with on them."""
    return group.choice.candidate.shape.nodes, largest_of(group.ladder)


def rung_of(
    judged: Evaluation,
    at: int,
    ladder: Sequence[Evaluation],
    objective: Objective,
    others: Sequence[str] = (),
) -> Rung:
    """The rung with the reason for its place in the ladder; `others`: lines with the choices on other numbers of nodes."""
    assert judged.rung is not None
    faster = [
        rung for rung in ladder if objective == "interactive" and tps_alone(rung) > tps_alone(ladder[0])
    ]
    if at == 0:
        reason = "; ".join((OBJECTIVES[objective] + _ranked_lower(faster), *others))
        return judged.rung.model_copy(update={"reason": reason})
    before = ladder[at - 1].rung
    assert before is not None
    more = f"; predicted faster than the choice, but {_doubt_of(judged)}" if judged in faster else ""
    return judged.rung.model_copy(update={"reason": f"if {before.candidate.how} does not start{more}"})


def _ranked_lower(faster: Sequence[Evaluation]) -> str:
    """The fastest of the rungs that are predicted faster than the choice; "" if there are none."""
    if not faster:
        return ""
    most = max(faster, key=tps_alone)
    assert most.rung is not None
    how = most.rung.candidate.how
    return f"; {how} is predicted faster ({tps_alone(most):.3g} tok/s) but ranked lower: {_doubt_of(most)}"


def _doubt_of(judged: Evaluation) -> str:
    """Reason for a rank below that of its predicted speed: a rule, or else what was published."""
    for match in judged.slowed_by:
        then = match.rule.then
        if isinstance(then, Penalise) and then.factor is None and then.worth is not None:
            return f"{match.rule.title} (`sparkfleet explain {match.rule.id}`)"
    return "fewer published measurements"


def moved(rung: Rung, nodes: tuple[str, ...], beside: Sequence[str]) -> Rung:
    """The rung on its nodes; `beside`: the deployments that are on them already."""
    shape = rung.candidate.shape.model_copy(update={"nodes": nodes})
    update: dict[str, object] = {"candidate": rung.candidate.model_copy(update={"shape": shape})}
    if beside:
        shared = f"shares memory bandwidth with {', '.join(beside)}: each is slower than predicted while both are busy"
        update["notes"] = (*rung.notes, shared)
    return rung.model_copy(update=update)
