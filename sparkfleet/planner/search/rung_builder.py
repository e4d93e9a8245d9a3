"""A judged draft as a rung of a ladder: its numbers, and why it stands where it does. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.sizing import Proposal, VariantContext
from sparkfleet.planner.search.judge import Evaluation
from sparkfleet.planner.search.objective import NODES_COST
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung
from sparkfleet.specs.deployment import Objective

OBJECTIVES: dict[Objective, str] = {
    "interactive": "fastest answer to one request",
    "throughput": "highest total throughput",
    "context": "holds the longest context",
}
"""What the choice is best at, as plans say it."""

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


def because(draft: Proposal, choice: Evaluation, tps: float, ours: float, case: VariantContext) -> str:
    """Reason why a shape of more nodes ranks lower."""
    ranks, other = draft.split.ranks, choice.draft.split.ranks
    if draft.split.ep > 1 and choice.draft.split[:2] == draft.split[:2]:
        return ": EP reads as many bytes as TP here: no speed-up"
    if ranks <= other:
        return ""
    if tps > 1.05 * ours:
        faster, nodes = tps / ours, ranks / other if other else float(ranks)
        worth = "on less evidence, on" if faster >= nodes**NODES_COST else "is not worth"
        return f": {faster:.2g} times as fast {worth} {nodes:g} times the nodes"
    if tps >= ours:
        return f": hardly faster on {ranks // other if other else ranks} times the nodes"
    blocks = case.outlook.arch.layers.blocks + case.outlook.arch.layers.mixers
    link = draft.pool.site.link
    if draft.split.tp > 1 and link is not None:
        return f": {blocks} all-reduces a step over {link.latency_us:.0f} µs links cost more than the smaller reads save"
    return ""


def largest_of(rungs: Sequence[Rung]) -> float:
    """A place has to do for every rung of its ladder."""
    return max(rung.prediction.memory_bytes_per_rank.mid for rung in rungs)


def nodes_and_bytes_of(group: GroupPlan) -> tuple[tuple[str, ...], float]:
    """The nodes of a group, and what each of its ranks is counted with there, bytes."""
    return group.choice.candidate.shape.nodes, largest_of(group.ladder)


def rung_of(judged: Evaluation, at: int, ladder: Sequence[Evaluation], objective: Objective) -> Rung:
    """The rung with the reason why it stands where it does."""
    assert judged.rung is not None
    promising = [
        rung for rung in ladder if objective == "interactive" and tps_alone(rung) > tps_alone(ladder[0])
    ]
    if at == 0:
        return judged.rung.model_copy(update={"reason": OBJECTIVES[objective] + _promised(promising)})
    before = ladder[at - 1].rung
    assert before is not None
    more = "; promises more than the choice, on less evidence" if judged in promising else ""
    return judged.rung.model_copy(update={"reason": f"where {before.candidate.how} does not start{more}"})


def _promised(promising: Sequence[Evaluation]) -> str:
    """Line about rungs that are predicted faster than the choice, "" if there are none."""
    if not promising:
        return ""
    most = max(promising, key=tps_alone)
    assert most.rung is not None
    how = most.rung.candidate.how
    return f", evidence counted: {how} promises {tps_alone(most):.3g} tok/s alone, and less is published about it"


def moved(rung: Rung, nodes: tuple[str, ...], beside: Sequence[str]) -> Rung:
    """The rung on its nodes; `beside`: the deployments that lie there already."""
    shape = rung.candidate.shape.model_copy(update={"nodes": nodes})
    update: dict[str, object] = {"candidate": rung.candidate.model_copy(update={"shape": shape})}
    if beside:
        shared = f"shares memory bandwidth with {', '.join(beside)}: while both are busy each is slower than predicted"
        update["notes"] = (*rung.notes, shared)
    return rung.model_copy(update=update)
