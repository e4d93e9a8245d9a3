"""`sparkfleet plan`: shows the plan of deployments with its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    OfflineOption,
    open_session,
    run,
)
from sparkfleet.cli.output import console, print_line
from sparkfleet.cli.planning.model_options import (
    ConcurrencyOption,
    ContentOption,
    ContextOption,
    ModelOptions,
    ObjectiveOption,
    deployments_with,
)
from sparkfleet.cli.planning.next_commands import next_lines
from sparkfleet.cli.planning.plan_options import (
    AssumeOption,
    FileOption,
    FilesArgument,
    SparksOption,
    assumed_fleet,
    given_files,
)
from sparkfleet.cli.planning.plan_output import (
    Shown,
    print_origins,
    print_plan_json,
    print_plans,
    print_terms,
)
from sparkfleet.errors import NodeError, SpecError
from sparkfleet.fleet.gateway import gateway_change
from sparkfleet.fleet.planning.plan import plan_deployments
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import NoFile

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


def plan(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument = None,
    file: FileOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    assumed: AssumeOption = None,
    sparks: SparksOption = None,
    context: ContextOption = None,
    concurrency: ConcurrencyOption = None,
    objective: ObjectiveOption = None,
    content: ContentOption = None,
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
    options = ModelOptions(context, concurrency, objective, content)
    return run(_plan(given, options, *assumed_fleet(inventory, assumed, sparks), shown))


async def _plan(
    files: list[Path], options: ModelOptions, inventory: Path | Inventory, assumed: str | None, shown: Shown
) -> int:
    specs = deployments_with(files, options)
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
        print_plan_json(planned, sums)
    else:
        print_origins(planned.checkpoints)
        variants = print_plans(planned, shown)
        if gateway:
            console.print(gateway)
        print_terms(sums or {}, shown)
        for line in next_lines(files, planned, inventory, variants, options):
            print_line(line)
    if planned.decision.plan.refused:
        return Exit.INFEASIBLE
    return Exit.PENDING if planned.decision.pending or gateway else Exit.DONE
