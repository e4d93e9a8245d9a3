"""`sparkfleet plan`: shows the plan of deployments with its reasons."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    OfflineOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json, print_line, print_lines
from sparkfleet.cli.planning.next_commands import is_default, next_lines
from sparkfleet.controlplane.views.speculation_advice import advice_lines
from sparkfleet.errors import NodeError, SpecError
from sparkfleet.fleet.gateway import gateway_change
from sparkfleet.fleet.nodes.assumed import MOST_SPARKS, assumed_inventory
from sparkfleet.fleet.planning.fewer_bits import fewer_bits_lines
from sparkfleet.fleet.planning.fleet_decision import PlannedDeployment
from sparkfleet.fleet.planning.gguf_offers import GgufOffer, gguf_lines
from sparkfleet.fleet.planning.named_images import named_image_lines
from sparkfleet.fleet.planning.plan import FleetPlan, plan_deployments
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
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import NoFile, load_deployments
from sparkfleet.values import Value


def _file(text: str) -> Path:
    """A file of a command line. An empty word is refused: as a path it would be the whole directory."""
    if not text:
        raise typer.BadParameter("an empty name, such as that of a variable of the shell that is not set.")
    return Path(text)


FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        parser=_file,
        help="Deployment files, or models of the Hub (org/name); a directory: all files in it; -: standard input.",
        metavar="FILE|MODEL",
        show_default=False,
    ),
]
FileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", parser=_file, metavar="FILE", help="The same as FILE. Repeatable.", show_default=False
    ),
]
AssumeOption = Annotated[
    str | None,
    typer.Option(
        "--assume",
        metavar="KIND[,…]|FILE",
        help="Plan without contacting the nodes: as if each were a `dgx-spark` or `dgx-spark-64` (64 GB); with the kind of"
        " each, as `dgx-spark,dgx-spark-64`; or from a file of facts.",
    ),
]
SparksOption = Annotated[
    int | None,
    typer.Option(
        "--sparks",
        min=1,
        max=MOST_SPARKS,
        metavar="N",
        help="Plan for N idle Sparks, which you need not have, in place of an inventory; of 128 GB without --assume.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Show every candidate that was not chosen.")]
WhyOption = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="CANDIDATE",
        help='Show every candidate with these words in its name, such as "TP=2".',
    ),
]


ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show the terms of the predicted ITL and TTFT: bytes and FLOPs, rates, fitted factors.",
    ),
]
RungOption = Annotated[
    int | None,
    typer.Option(
        "--rung",
        min=1,
        metavar="N",
        help="With --explain: the rung of the ladder, from 1.",
        show_default="1",
    ),
]

_WITHOUT_NODES = "`--assume dgx-spark` plans without contacting the nodes."
_WITHOUT_INVENTORY = "`--sparks 2` plans for two Sparks without one."


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


def plan(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument = None,
    file: FileOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    assumed: AssumeOption = None,
    sparks: SparksOption = None,
    everything: AllOption = False,
    why: WhyOption = None,
    offline: OfflineOption = False,
    explain: ExplainOption = False,
    rung: RungOption = None,
    json: JsonOption = False,
) -> int:
    """Show what `apply` would do, with its reasons. Changes nothing."""
    if rung is not None and not explain:
        raise SpecError(
            f"--rung {rung} chooses the prediction that --explain shows.",
            do=f"`sparkfleet plan … --explain --rung {rung}`; `--all` lists the rungs.",
        )
    shown = Shown(everything, why, json, (rung or 1) - 1 if explain else None)
    given = given_files("plan", files, file)
    return run(_plan(given, *assumed_fleet(inventory, assumed, sparks), shown))


def assumed_fleet(
    inventory: Path, assumed: str | None, sparks: int | None
) -> tuple[Path | Inventory, str | None]:
    """The inventory of a command line, and what its nodes are assumed to be. `--sparks` replaces both.

    Raises:
        SpecError: `--sparks` is given with an inventory, or with a file of facts.
    """
    if sparks is None:
        return inventory, assumed
    if not is_default(inventory):
        raise SpecError(
            "`--sparks` and `--inventory` are both given.",
            do="`--sparks N` plans for Sparks that are in no inventory; `--assume dgx-spark` for those of one.",
        )
    return assumed_inventory(sparks), assumed or "dgx-spark"


def without_owner(given: Path) -> list[str]:
    """Published models that somebody may mean who typed this without the name of the owner; none if it is a file."""
    if (
        len(given.parts) != 1
        or given.suffix in (".yaml", ".yml")
        or given == Path("-")
        or os.path.exists(given)
    ):
        return []
    from sparkfleet.fleet.planning.published_names import (
        near_without_owner,
    )  # reads tables, for this error only

    return near_without_owner(given.name)


def given_files(verb: str, files: Sequence[Path] | None, more: Sequence[Path] | None) -> list[Path]:
    """The files of a command line. Raises SpecError if there are none, NoFile for a model without its owner."""
    given = [*(files or ()), *(more or ())]
    for one in given:
        if meant := without_owner(one):
            commands = ", ".join(f"`sparkfleet {verb} {model}`" for model in meant)
            raise NoFile(
                f"{one}: no such file, and a model of the Hub has the name of its owner.",
                do=f"Did you mean {commands}?",
            )
    if not given:
        raise SpecError(
            "No deployment's file and no model is given.",
            do=f"`sparkfleet {verb} FILE`; a directory means all files in it, `-` for standard input."
            f"\n`sparkfleet {verb} ORG/MODEL` leaves everything but the model open.",
        )
    return given


async def _plan(files: list[Path], inventory: Path | Inventory, assumed: str | None, shown: Shown) -> int:
    specs = load_deployments(files)
    try:
        session = open_session(inventory)
    except NoFile as error:
        raise NoFile(error.what, means=error.means, do=f"{error.do}\n{_WITHOUT_INVENTORY}") from None
    try:
        planned = await plan_deployments(session, specs, assumed)
    except NodeError as error:
        raise type(error)(error.what, means=error.means, do=f"{error.do}\n{_WITHOUT_NODES}".strip()) from None
    gateway = gateway_change(session.inventory, planned.status)
    sums = None if shown.explained is None else planned.prediction_sums(shown.explained)
    if shown.json:
        _print(planned, sums)
    else:
        print_origins(planned.checkpoints)
        offers = print_plans(planned, shown)
        if gateway:
            console.print(gateway)
        _explain(sums or {}, shown)
        for line in next_lines(files, planned, inventory, offers):
            print_line(line)
    if planned.decision.plan.refused:
        return Exit.INFEASIBLE
    return Exit.PENDING if planned.decision.pending or gateway else Exit.DONE


def _lines(
    one: PlannedDeployment, fleet: Fleet, others: Sequence[str], *, everything: bool = False
) -> tuple[str, ...]:
    return (
        *explain_plan(one.plan, everything=everything, nodes=fleet.nodes),
        *explain_measured(one.measured),
        *others,
        *explain_change(one.change, one.plan),
    )


def print_plans(found: FleetPlan, shown: Shown = SHORT) -> Mapping[str, Sequence[GgufOffer]]:
    """Print every plan and every refusal, each with an empty line behind it. Returns the GGUFs that they offer."""
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
            lines = _plan_lines(planned[spec.name], found.fleet, shown, others)
        print_lines(lines)
        console.print()
    if len(found.specs) > 1:
        print_lines(explain_nodes(found.decision.plan.nodes))
        console.print()
    return ggufs


def print_origins(checkpoints: Mapping[str, Checkpoint]) -> None:
    """Print the origin of sizes that are from the Hub, or estimated because the Hub did not answer."""
    lines = explain_origins([(model, found.origin) for model, found in checkpoints.items() if found.origin])
    print_lines(lines)
    if lines:
        console.print()


def _plan_lines(one: PlannedDeployment, fleet: Fleet, shown: Shown, others: Sequence[str]) -> Iterator[str]:
    yield from _headline(one.spec, one.plan, fleet)
    if shown.why is not None:
        yield from explain_why(one.plan, one.plan.rejected, shown.why)
    else:
        yield from _lines(one, fleet, others, everything=shown.everything)


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


def _explain(sums: Sums, shown: Shown) -> None:
    """Print the terms of each deployment's predictions. Rows of tables are not folded."""
    for name, found in sums.items():
        console.print(f"{name}, rung {(shown.explained or 0) + 1}", markup=False)
        if not found:
            console.print("  no prediction: it runs on a CPU, or is a custom workload")
        for one in found:
            for line in sum_lines(one):
                console.print(line, markup=False)
            console.print()


def _print(found: FleetPlan, sums: Sums | None) -> None:
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
