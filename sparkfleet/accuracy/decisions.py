"""Regret of the plan's choices against the best published ones: `sparkfleet accuracy --decisions`.

    decide(published_cases()) -> DecisionReport

For every model, number of Sparks and objective with at least three published configurations (`published.py`), each
published checkpoint is planned by its name, and the best of these plans is the choice. A second table has the same decisions
made as if nothing of the model's shapes were published: evidence, fitted effects and acceptance of its family are left out.
Regret is 1 − published speed of the choice / best published speed; if nobody published it for the model, that of another
model of its shapes counts, and if nobody did for that either, 0.7 of its prediction. Plans read the committed knowledge
only, never the rows that they are compared with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from sparkfleet.accuracy.decision_report import DecisionReport, ScoredDecision
from sparkfleet.accuracy.models import QUANTISATIONS, Stored, checkpoint_of, entry_of
from sparkfleet.accuracy.physical_gate import possible
from sparkfleet.accuracy.published import Combination, PublishedDecision, decisions_in
from sparkfleet.accuracy.rows import PublishedCase, cases_of, read_rows
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError
from sparkfleet.fleet.nodes.assumed import assume, assumed_inventory
from sparkfleet.knowledge.measurements import BENCHMARKS, architectures
from sparkfleet.knowledge.models.known_models import checkpoint_if_known
from sparkfleet.knowledge.models.published_checkpoints import PublishedCheckpoint, PublishedPart
from sparkfleet.knowledge.published.left_out import families_left_out
from sparkfleet.perf.draft_methods import SPEED_METHODS, speed_method
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.perf.weight_formats import format_of
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.planner.types.plan import ENGINE_LABELS, DeploymentPlan
from sparkfleet.specs.deployment import Deployment

NAMED = frozenset(("prismaquant",))
"""Formats that engines load and that only the checkpoint's name reveals."""
MIXED: Mapping[str, Mapping[PublishedPart, float]] = {
    "int4-int8": {"experts": 4.13, "attention": 8.13, "linear_attention": 8.13, "shared_experts": 8.13},
}
"""Bits by part of the mixed formats that authors make from a checkpoint."""


def published_cases(rows_path: Path | None = None) -> tuple[PublishedCase, ...]:
    """The cases that can be true in the rows of a file.

    Args:
        rows_path: CSV with the columns of `knowledge/measurements/benchmarks.csv`; None: that file.

    Raises:
        SpecError: the file is missing or invalid.
    """
    return tuple(map(possible, cases_of(read_rows(rows_path or BENCHMARKS))))


def decide(cases: Iterable[PublishedCase], *, unseen: bool = False) -> DecisionReport:
    """Plan every decision in the cases, and compare with the best published combination.

    Args:
        cases: those of `published_cases`.
        unseen: also decide without what is published of each model's family.
    """
    asked = decisions_in(cases)
    found = tuple(scored(one) for one in asked)
    return DecisionReport(decisions=found, unseen=tuple(map(scored_unseen, asked)) if unseen else ())


def scored_unseen(decision: PublishedDecision, *, given: bool = False) -> ScoredDecision:
    """The decision, made without evidence, effects and acceptance of the model's family.

    Coefficients of physical terms and effects of other keys (engine, format, method) keep what they have of all rows.

    Args:
        decision: the decision.
        given: only checkpoints in the format of the best are planned, as if a deployment had named one.
    """
    predictor_of.cache_clear()  # remembers predictions
    try:
        with families_left_out(decision.families):
            return scored(decision, given=given)
    finally:
        predictor_of.cache_clear()


def scored(decision: PublishedDecision, *, given: bool = False) -> ScoredDecision:
    """The decision with the best plan of its checkpoints; `given`: of those in the format of the best published."""
    speeds = decision.speeds()
    best = max(speeds, key=lambda one: speeds[one])
    checkpoints = [one for one in decision.checkpoints if not given or one[1] == best.format]
    unknown: list[str] = []
    refused: list[str] = []
    plans: list[tuple[tuple[str, str], DeploymentPlan]] = []
    for name, format_name in checkpoints:
        known = _known(name, format_name)
        if isinstance(known, str):
            unknown.append(f"{name} {format_name}: {known}")
            continue
        plan = _planned(known, decision)
        if isinstance(plan, str):
            refused.append(f"{name} {format_name}: {plan}")
        else:
            plans.append(((name, format_name), plan))
    found = ScoredDecision(
        model=decision.model,
        nodes=decision.nodes,
        objective=decision.objective,
        concurrency=decision.concurrency,
        configurations=decision.configurations,
        best=str(best),
        best_tps=speeds[best],
        refused=tuple(refused),
        unknown=tuple(unknown),
    )
    return _with_choice(found, decision, plans) if plans else found


def _with_choice(
    found: ScoredDecision,
    decision: PublishedDecision,
    plans: Sequence[tuple[tuple[str, str], DeploymentPlan]],
) -> ScoredDecision:
    checkpoint, plan = max(plans, key=lambda one: one[1].groups[0].choice.worth)
    groups = plan.groups
    chosen = _combination(plan, checkpoint[1])
    own = _published(decision.speeds, decision.concurrency, chosen, len(groups))
    published = own or _published(decision.sibling_speeds, decision.concurrency, chosen, len(groups))
    return found.model_copy(
        update={
            "chosen": str(chosen),
            "checkpoint": " ".join(checkpoint),
            "groups": len(groups),
            "published_tps": published,
            "by_sibling": own is None and published is not None,
            "ran": chosen in decision.ran,
            "predicted_tps": _predicted(plan),
            "best_refused": _against(decision, plans),
        }
    )


def _published(
    speeds: Callable[[int], Mapping[Combination, float]], requests: int, chosen: Combination, groups: int
) -> float | None:
    """Published tok/s of a combination on so many groups together; None if there is none."""
    each = speeds(max(1, requests // groups)).get(chosen)
    # On one of the groups alone, all requests would be at least as fast.
    return speeds(requests).get(chosen) if each is None else each * groups


def _against(decision: PublishedDecision, plans: Sequence[tuple[tuple[str, str], DeploymentPlan]]) -> str:
    """The plans' reason against the best published combination; "" if they have none."""
    speeds = decision.speeds()
    best = max(speeds, key=lambda one: speeds[one])
    of_format = [plan for checkpoint, plan in plans if checkpoint[1] == best.format]
    if not of_format:
        return f"no plan for a checkpoint in {best.format}"
    engine, methods = ENGINE_LABELS[best.engine], _spellings(best.method)
    for one in (rejection for plan in of_format for rejection in plan.rejected):
        named = engine in one.what and any(word in one.what for word in methods)
        if named and (best.nodes > 1) == any(word in one.what for word in ("TP=2", "TP=4", "TP=3", "TP=8")):
            return f"{one.what}: {one.reason}"
    return ""


def _spellings(method: str) -> tuple[str, ...]:
    """A method as plans name it: " MTP k", " NEXTN k", "no speculation"."""
    if method == "none":
        return (" no speculation",)
    names = {method, *(own for own, row in SPEED_METHODS.items() if row == method)}
    return tuple(f" {name.upper()} k" for name in sorted(names))


def _combination(plan: DeploymentPlan, format_name: str) -> Combination:
    candidate = plan.groups[0].choice.candidate
    method = candidate.speculation.method
    return Combination(candidate.engine, speed_method(method), format_name, len(candidate.shape.nodes))


def _predicted(plan: DeploymentPlan) -> float:
    """tok/s of the objective: of one request, or of all groups together."""
    predictions = [group.choice.prediction for group in plan.groups]
    if plan.objective == "interactive":
        return max(
            (one.decode_tps_per_request.mid for one in predictions if one.decode_tps_per_request), default=0.0
        )
    return sum(one.decode_tps_aggregate.mid for one in predictions if one.decode_tps_aggregate)


def _known(name: str, format_name: str) -> Checkpoint | str:
    """The checkpoint that a plan uses for a published name, or the reason why there is none."""
    configs = architectures()
    try:
        by_name = checkpoint_if_known(name)
        if by_name is not None and format_name in MIXED and format_of(by_name) != format_name:
            by_name = _mixed(by_name, format_name)
        if by_name is not None and (format_of(by_name) == format_name or format_name in NAMED):
            return by_name.model_copy(update={"id": _hub_id(name)})
        if format_name not in QUANTISATIONS:
            return "stored in a format that no engine of a deployment loads"
        found = checkpoint_of(name, configs, Stored(format_name))
    except FactError as error:
        return error.what.rpartition(": ")[2]
    if found is None:
        return "no config is known by that name"
    return found.model_copy(update={"id": _hub_id(name)})


def _mixed(checkpoint: Checkpoint, format_name: str) -> Checkpoint:
    """The checkpoint with its parts stored in a mixed format."""
    own = PublishedCheckpoint(
        id=checkpoint.id,
        architecture="",
        bits=dict(MIXED[format_name]),
        sources=("its row",),
        date="2026-11",
    )
    return own.stored(checkpoint)


def _hub_id(name: str) -> str:
    """A published name as a deployment contains it: with the owner, if one is known."""
    full = name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else entry_of(name, architectures())
    owner, _, rest = full.partition("/") if "/" in full else ("published", "/", name)
    return f"{owner}/{re.sub(r'[^A-Za-z0-9._-]+', '-', rest).strip('-.')}"


@cache
def _sparks(count: int) -> Fleet:
    """Idle Sparks as `plan --sparks` assumes them: two on a cable, more on a switch."""
    inventory = assumed_inventory(count)
    nodes = assume("dgx-spark", inventory)
    return Fleet(name="published", nodes=nodes, links=links_of(inventory), assumed=tuple(inventory.nodes))


def _planned(checkpoint: Checkpoint, decision: PublishedDecision) -> DeploymentPlan | str:
    """The plan of one checkpoint on these Sparks, or the reason for none."""
    spec = Deployment(
        name="published",
        model=checkpoint.id,
        objective=decision.objective,
        concurrency=decision.concurrency,
    )
    plan = plan_fleet([spec], _sparks(decision.nodes), {checkpoint.id: checkpoint})
    if plan.refused:
        return plan.refused[0].rejected[0].reason if plan.refused[0].rejected else "refused"
    return plan.deployments[0]
