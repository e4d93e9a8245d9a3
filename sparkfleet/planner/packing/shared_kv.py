"""Finds what a choice could hold if its ranks shared the KV cache that each keeps a copy of. Pure.

Plans name it and do not choose it: decision 156.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.perf.layers import EXACT
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import SharedKv, Speculation
from sparkfleet.planner.capacity.headroom import proposal_of, reached, settings_of_candidate
from sparkfleet.planner.capacity.proposal import VariantCase
from sparkfleet.planner.place.context_split import kv_copies
from sparkfleet.planner.rules.judgement import fold, judge
from sparkfleet.planner.search.candidate_builder import situation_elsewhere
from sparkfleet.planner.search.rule_effects import allows
from sparkfleet.planner.types.plan import Candidate, Rung

NOTABLE = 1.25
"""Times as much context from which on it is worth a line."""


def shared_kv(case: VariantCase, choice: Rung, room: MemoryBudget) -> SharedKv | None:
    """Sizes that one KV cache of all ranks that keep the same would hold; None if they do not, or it holds little more.

    Args:
        case: what is served.
        choice: as it is planned, with what it has room for.
        room: of its fullest node, the choice itself not counted.
    """
    shape, rate = choice.candidate.shape, choice.prediction.decode_tps_per_request
    copies = kv_copies(case.predictor.checkpoint, shape.tp)
    if copies == 1 or shape.dcp > 1 or rate is None:
        return None
    ways = tuple(_ways(choice.candidate, copies))
    allowed = next((way for way in ways if not _refusal(case, way)), None)
    if allowed is None and case.predictor.shape.layers.pool_factor != EXACT:
        return None  # nothing runs it, and how such pages would be split is not known
    candidate = allowed or ways[-1]
    most = SharedKv(
        dcp=copies,
        decode_tps=rate.mid * _rate(case, candidate) / _rate(case, choice.candidate),
        undrafted=candidate.speculation.method != choice.candidate.speculation.method,
        refused_by="" if allowed else _refusal(case, candidate),
        **reached(case, choice, room, candidate, allows=allows if allowed else None),
    )
    without = choice.prediction.largest_context or choice.candidate.context
    return most if most.largest_context >= NOTABLE * without else None


def _rate(case: VariantCase, candidate: Candidate) -> float:
    """Predicted tok/s of one request alone, before rules and measurements."""
    link = proposal_of(case, candidate).pool.site.link
    settings = settings_of_candidate(candidate, link)
    return case.predictor.rates(
        candidate.shape.split, settings, candidate.context, 1
    ).decode_tps_per_request.mid


def _refusal(case: VariantCase, candidate: Candidate) -> str:
    """Id of the first rule against a candidate; "" if there is none."""
    against = fold(judge(situation_elsewhere(case, candidate))).rejected_by
    return against[0].rule.id if against else ""


def _ways(candidate: Candidate, dcp: int) -> Iterator[Candidate]:
    """The candidate with one KV cache, then also without drafts."""
    shared = candidate.model_copy(update={"shape": candidate.shape.model_copy(update={"dcp": dcp})})
    yield shared
    if candidate.speculation.method != "none":
        yield shared.model_copy(update={"speculation": Speculation(), "speculative": ()})
