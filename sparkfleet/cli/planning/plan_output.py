"""Output of plans: in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json, print_lines
from sparkfleet.cli.planning.next_commands import Variants
from sparkfleet.controlplane.views.speculation_advice import advice_lines
from sparkfleet.fleet.planning.fewer_bits import fewer_bits_lines
from sparkfleet.fleet.planning.fleet_decision import PlannedDeployment
from sparkfleet.fleet.planning.gguf_offers import gguf_lines
from sparkfleet.fleet.planning.named_images import named_image_lines
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.explain.change import explain_change
from sparkfleet.planner.report.explain.fleet import (
    explain_fleet,
    explain_measured,
    explain_nodes,
    explain_origins,
)
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal, explain_why
from sparkfleet.planner.report.prediction_terms import PredictionSum, sum_lines
from sparkfleet.planner.types.plan import DeploymentPlan, InfeasibleDeployment
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

Sums = Mapping[str, tuple[PredictionSum, ...]]
"""Terms of the predictions, by the names of the deployments that fit."""


class Shown(NamedTuple):
    """Amount and format of a plan's output."""

    everything: bool = False
    why: str | None = None
    json: bool = False
    explained: int | None = None
    """The rung, from 0, whose prediction is explained; None: no prediction is."""


SHORT = Shown()


def _lines(
    one: PlannedDeployment, found: FleetPlan, others: Sequence[str], *, everything: bool = False
) -> tuple[str, ...]:
    fleet, offers = found.fleet, found.decision.plan.offers
    return (
        *explain_plan(one.plan, everything=everything, nodes=fleet.nodes, head=fleet.head, offers=offers),
        *explain_measured(one.measured),
        *others,
        *explain_change(one.change, one.plan),
    )


def print_plans(found: FleetPlan, shown: Shown = SHORT) -> Variants:
    """Print every plan and every refusal, each with an empty line behind it. Returns the variants that they offer."""
    planned = {one.spec.name: one for one in found.decision.planned}
    refused = {one.name: one for one in found.decision.plan.refused}
    fewer_bits, named_images, ggufs = found.fewer_bits(), found.named_images(), found.ggufs()
    speculation = found.speculation()
    for spec in found.specs:
        lighter = [
            *gguf_lines(ggufs.get(spec.name, ())),
            *fewer_bits_lines(fewer_bits.get(spec.name, ())),
        ]
        if spec.name in refused:
            lines = refusal_lines(spec, refused[spec.name], found.fleet, shown, lighter)
        else:
            others = [
                *advice_lines(speculation.get(spec.name, ())),
                *lighter,
                *named_image_lines(named_images.get(spec.name, ())),
            ]
            lines = _plan_lines(planned[spec.name], found, shown, others)
        print_lines(lines)
        console.print()
    if len(found.specs) > 1:
        print_lines(explain_nodes(found.decision.plan.nodes))
        console.print()
    return Variants(ggufs, fewer_bits)


def print_origins(checkpoints: Mapping[str, Checkpoint]) -> None:
    """Print the origin of sizes that are from the Hub, or estimated because the Hub did not answer."""
    lines = explain_origins([(model, found.origin) for model, found in checkpoints.items() if found.origin])
    print_lines(lines)
    if lines:
        console.print()


def _plan_lines(
    one: PlannedDeployment, found: FleetPlan, shown: Shown, others: Sequence[str]
) -> Iterator[str]:
    yield from _headline(one.spec, one.plan, found.fleet)
    if shown.why is not None:
        yield from explain_why(one.plan, one.plan.rejected, shown.why)
    else:
        yield from _lines(one, found, others, everything=shown.everything)


def refusal_lines(
    spec: Deployment,
    refusal: InfeasibleDeployment,
    fleet: Fleet,
    shown: Shown = SHORT,
    lighter: Sequence[str] = (),
) -> Iterator[str]:
    """Reason why a deployment cannot be served."""
    yield from _headline(spec, None, fleet)
    if shown.why is not None:
        yield from explain_why(None, refusal.rejected, shown.why)
    else:
        yield from explain_refusal(refusal, everything=shown.everything, lighter=lighter)
        yield from _hint(spec, fleet)


def _headline(spec: Deployment, plan: DeploymentPlan | None, fleet: Fleet) -> Iterator[str]:
    """Lines of the headline. The empty one at the end is a line of its own: folding drops line ends."""
    headline = explain_fleet(
        spec,
        plan,
        fleet.nodes,
        fleet.name,
        links=fleet.links,
        assumed=fleet.assumed,
        drained=fleet.drained,
    )
    yield from headline.split("\n")


def _hint(spec: Deployment, fleet: Fleet) -> list[str]:
    """The way to plan without a Spark at hand; none for built-in models, which no GPU serves."""
    models = [variant.model for variant in spec.resolved()]
    if any(node.gpu for node in fleet.nodes) or all(model.startswith("builtin:") for model in models):
        return []
    return ["  hint        no node here has a GPU; `--assume dgx-spark` plans as if each node were a Spark"]


def print_terms(sums: Sums, shown: Shown) -> None:
    """Print the terms of each deployment's predictions. Rows of tables are not folded."""
    for name, found in sums.items():
        console.print(f"{name}, rung {(shown.explained or 0) + 1}", markup=False)
        if not found:
            console.print("  no prediction: it runs on a CPU, or is a custom workload")
        for one in found:
            for line in sum_lines(one):
                console.print(line, markup=False)
            console.print()


def print_plan_json(found: FleetPlan, sums: Sums | None) -> None:
    """Print the plans as JSON, with the terms of their predictions if there are any."""
    decision, fleet = found.decision, found.fleet
    explained = {} if sums is None else {"explained": _as_json(sums)}
    print_json(
        {
            "version": OUTPUT_VERSION,
            "deployments": [one.model_dump(mode="json") for one in decision.planned],
            "refused": [one.model_dump(mode="json") for one in decision.plan.refused],
            "nodes": [one.model_dump(mode="json") for one in decision.plan.nodes],
            "fewer_bits": _as_json(found.fewer_bits()),
            "named_images": _as_json(found.named_images()),
            "ggufs": _as_json(found.ggufs()),
            "speculation": _as_json(found.speculation()),
            "assumed": list(fleet.assumed),
        }
        | explained
    )


def _as_json(values: Mapping[str, Sequence[Value]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one.model_dump(mode="json") for one in found] for name, found in values.items()}
