"""`sparkfleet apply`: plans deployments, asks for agreement, starts them, and waits until they serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    OfflineOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import console, errors, print_line
from sparkfleet.cli.planning.model_options import (
    ConcurrencyOption,
    ContentOption,
    ContextOption,
    ModelOptions,
    ObjectiveOption,
    deployments_with,
)
from sparkfleet.cli.planning.next_commands import instead_lines
from sparkfleet.cli.planning.plan_options import (
    AssumeOption,
    FileOption,
    FilesArgument,
    SparksOption,
    assumed_fleet,
    given_files,
)
from sparkfleet.cli.planning.plan_output import print_origins, print_plans
from sparkfleet.errors import SpecError
from sparkfleet.fleet.deployments.apply import (
    PreparedApply,
    carry_out,
    create_first_key,
    not_ready,
    prepare_apply,
    until_kept_serve,
)
from sparkfleet.fleet.planning.group_measurements import (
    NEVER_MEASURED,
    NOT_MEASURED,
    is_predicted,
    measured_words,
)
from sparkfleet.fleet.session import Session

# A slow import; this module imports in its functions what is needed after the plan is shown.
if TYPE_CHECKING:
    from sparkfleet.controlplane.api.client import FleetClient
    from sparkfleet.controlplane.state.status import DeploymentStatus

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the command of every rank instead of running it.")
]


def apply(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument = None,
    file: FileOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it serves.")] = True,
    show_only: DryRunOption = False,
    assumed: AssumeOption = None,
    sparks: SparksOption = None,
    context: ContextOption = None,
    concurrency: ConcurrencyOption = None,
    objective: ObjectiveOption = None,
    content: ContentOption = None,
    offline: OfflineOption = False,
    pull: Annotated[
        bool,
        typer.Option(
            "--pull",
            help="Resolve image tags at their registries again; otherwise a deployment keeps its image.",
        ),
    ] = False,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Begin at rung 1 of the ladder, including rungs that are remembered as failed; size each replica again.",
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print JSON with a version field.")
    ] = False,
) -> int:
    """Serve the deployments in the files. Starts those that do not run; applying twice changes nothing."""
    given = given_files("apply", files, file)
    options = ModelOptions(context, concurrency, objective, content)
    if show_only:
        from sparkfleet.cli.planning.dry_run import show_dry_run  # a slow import

        specs = deployments_with(given, options)
        return run(show_dry_run(specs, *assumed_fleet(inventory, assumed, sparks), json))
    for option, value in (("--assume", assumed), ("--sparks", sparks)):
        if value is not None:
            raise SpecError(
                f"{option} needs --dry-run.", do=f"`sparkfleet plan FILE {option} …` plans on assumed nodes."
            )
    if json:
        raise SpecError(
            "--json needs --dry-run.", do="`sparkfleet describe NAME --json` prints a deployment's state."
        )
    return run(_apply(given, options, inventory, yes, wait, pull=pull, retry=retry))


async def _apply(
    files: list[Path],
    options: ModelOptions,
    inventory: Path,
    yes: bool,
    wait: bool,
    *,
    pull: bool,
    retry: bool,
) -> int:
    specs = deployments_with(files, options)
    session = open_session(inventory)
    prepared = await prepare_apply(session, specs, renew=pull, retry=retry)
    print_origins(prepared.planned.checkpoints)
    variants = print_plans(prepared.planned)
    if prepared.gateway:
        console.print(prepared.gateway)
    for line in instead_lines(files, prepared.planned, inventory, variants, options):
        print_line(line)
    prepared.planned.require_feasible()
    if prepared.changes_nothing and prepared.planned.client is not None:
        return await _keep(session, prepared, prepared.planned.client, wait=wait)
    code = await confirm_and_carry_out(session, prepared, "Apply?", yes, wait=wait)
    if code == Exit.DONE and wait:
        asked = [one.name for one in specs if all(part.engine != "custom" for part in one.resolved())]
        for name in asked[:1]:
            console.print(
                f'Next: `sparkfleet ask {name} "…"`; `sparkfleet connect CLIENT {name}` configures a client.',
                markup=False,
            )
    return code


async def _keep(session: Session, prepared: PreparedApply, client: FleetClient, *, wait: bool) -> int:
    """Change nothing, and wait until what an earlier command has begun serves. Returns the exit code."""
    from sparkfleet.cli.progress import ProgressLine

    starting = not_ready(prepared)
    with ProgressLine() as progress:
        async with client:
            await create_first_key(client, progress)
            settled = await until_kept_serve(client, prepared, progress) if starting and wait else {}
    print_outcome(settled)
    if starting and not wait:
        console.print(f"Not ready yet: {', '.join(starting)}. `sparkfleet status` shows the progress.")
    console.print(f"No change. {session.endpoint.words(client)}")
    failed = any(one.state == "failed" or one.instead is not None for one in settled.values())
    return Exit.ERROR if failed else Exit.DONE


async def confirm_and_carry_out(
    session: Session, prepared: PreparedApply, question: str, yes: bool, *, wait: bool = True
) -> int:
    """Ask for agreement, apply, follow the start, and print the outcome. Returns the exit code."""
    confirm(question, yes)
    from sparkfleet.cli.progress import ProgressLine, times_line

    with ProgressLine() as progress:
        applied = await carry_out(session, prepared, progress, wait=wait)
    print_outcome(applied.settled)
    if wait:
        console.print(times_line(applied.times), markup=False)
    else:
        console.print("Accepted. `sparkfleet status` shows the progress.")
    console.print(session.endpoint.words(applied.client))
    return Exit.ERROR if applied.failed else Exit.DONE


def print_outcome(settled: Mapping[str, DeploymentStatus]) -> None:
    """Print how each deployment ended, with what was left and why."""
    from sparkfleet.fleet.report.outcome import RETRY, failed_lines, rung_lines

    for deployment in settled.values():
        if deployment.state == "failed" or deployment.instead is not None:
            errors.print(f"{deployment.name} failed: {deployment.detail}")
            for line in failed_lines(deployment):
                errors.print(f"  {line}", markup=False)
            errors.print(
                f"  Details: `sparkfleet describe {deployment.name}`, `sparkfleet logs {deployment.name}`."
            )
            errors.print(f"  {RETRY}")
        elif deployment.state == "unloaded":
            console.print(f"{deployment.name} is on demand: {deployment.detail}", markup=False)
        several = deployment.plan is not None and len(deployment.plan.groups) > 1
        for group in deployment.groups:
            if group.phase == "ready" and deployment.index_of(group.group) is not None:
                words = measured_words(deployment, group)
                known = is_predicted(deployment, group) or words in {NOT_MEASURED, NEVER_MEASURED}
                name = group.name if several else deployment.name
                console.print(f"{name} is ready: {words}{'' if known else ' (measured; not predicted)'}")
                for line in rung_lines(deployment, group):
                    console.print(f"  {line}", markup=False)
