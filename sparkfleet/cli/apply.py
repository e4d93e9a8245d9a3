"""`sparkfleet apply`: make it so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.agree import agree
from sparkfleet.cli.dry_run import DryRunOption, dry_run
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.measured import is_predicted, measured_words
from sparkfleet.cli.outcome import failed_lines, rung_lines
from sparkfleet.cli.output import console, errors
from sparkfleet.cli.plan import (
    AssumeOption,
    FilesArgument,
    Planned,
    checkpoints_for,
    current,
    decide,
    fleet_of,
    tell,
    tell_origins,
)
from sparkfleet.cli.session import (
    DEFAULT_INVENTORY,
    InventoryOption,
    OfflineOption,
    Session,
    YesOption,
    run,
    who,
)
from sparkfleet.cli.staged import bring, pinned
from sparkfleet.cli.watch import Progress, until_settled
from sparkfleet.control.client import FleetClient
from sparkfleet.control.requests import ApplyRequest
from sparkfleet.control.status import DeploymentStatus
from sparkfleet.errors import Infeasible, SpecError
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.spec.load import load_deployments

FIRST_KEY = "default"


def apply(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it serves.")] = True,
    show_only: DryRunOption = False,
    assumed: AssumeOption = None,
    offline: OfflineOption = False,
    pull: Annotated[
        bool,
        typer.Option(
            "--pull",
            help="Ask registries what tags stand for now; what is deployed keeps its image otherwise.",
        ),
    ] = False,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Begin at the top of the ladder, also with what is remembered not to start."
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print JSON with a version field.")
    ] = False,
) -> int:
    """Serve what the files ask for. Starts what is not running; applying twice changes nothing."""
    if show_only:
        return run(dry_run(files, inventory, assumed, json))
    if assumed is not None:
        raise SpecError("--assume: only with --dry-run.", do="`sparkfleet plan --assume` plans without it.")
    if json:
        raise SpecError(
            "--json: only with --dry-run.", do="`sparkfleet describe NAME --json` says what became of it."
        )
    return run(_apply(files, inventory, yes, wait, pull=pull, retry=retry))


async def _apply(
    files: list[Path], inventory: Path, yes: bool, wait: bool, *, pull: bool, retry: bool
) -> int:
    specs = load_deployments(files)
    session = Session(inventory)
    client = await session.find_controller()
    fleet = await fleet_of(session)
    checkpoints = await checkpoints_for(session, specs, fleet)
    status = await current(client)
    decided = decide(specs, fleet, status, checkpoints, renew=pull, retry=retry)
    tell(specs, decided, fleet)
    tell_origins(checkpoints)
    if decided.plan.refused:
        names = ", ".join(one.name for one in decided.plan.refused)
        raise Infeasible(
            f"Nothing was applied, because nothing in this fleet can serve {names}.",
            do="Change the deployment or the inventory where a reason above says so, or leave its file out.",
        )
    pending = decided.pending
    if client is not None and not pending:
        console.print(f"No change. {session.endpoint_words(client)}")
        return Exit.DONE
    agree("Apply?", yes)
    progress = Progress()
    try:
        failed = status.failures if status and not retry else ()
        plans = await pinned(session, [p.plan for p in pending], failed, progress, renew=pull)
        await bring(session, plans, progress)
        return await _carry_out(session, client, _requests(pending, plans, retry), wait, progress)
    finally:
        progress.done()


async def _carry_out(
    session: Session,
    client: FleetClient | None,
    requests: Sequence[ApplyRequest],
    wait: bool,
    progress: Progress,
) -> int:
    cold = client is None
    if client is None:
        client = await session.bring_up(requests, progress.passing)
        progress.done()
        # They are wanted already, and start: to try again a second time would be to start anew.
        requests = [request.model_copy(update={"retry": False}) for request in requests]
    async with client:
        after = 0 if cold else (await client.fleet()).last_event
        wanted = {request.spec.name: (await client.apply(request))[0] for request in requests}
        await _first_key(client)
        settled = await until_settled(client, wanted, after, progress) if wait else {}
        _report(settled)
        if not wait:
            console.print("Accepted. `sparkfleet status` shows how it goes.")
        console.print(session.endpoint_words(client))
    return Exit.ERROR if any(d.state == "failed" for d in settled.values()) else Exit.DONE


def _requests(pending: Sequence[Planned], plans: Sequence[DeploymentPlan], retry: bool) -> list[ApplyRequest]:
    return [
        ApplyRequest(spec=p.spec, plan=plan, who=who(), retry=retry)
        for p, plan in zip(pending, plans, strict=True)
    ]


async def _first_key(client: FleetClient) -> None:
    """The gateway asks for a key from its first start on, so the first apply makes one.

    It is shown before anything is waited for: whoever stops watching has seen it.
    """
    if await client.keys():
        return
    key = (await client.create_key(FIRST_KEY))["key"]
    console.print(f'API key "{FIRST_KEY}", shown this once and not kept: {key}')


def _report(settled: dict[str, DeploymentStatus]) -> None:
    for deployment in settled.values():
        if deployment.state == "failed":
            errors.print(f"{deployment.name} failed: {deployment.detail}")
            for line in failed_lines(deployment):
                errors.print(f"  {line}", markup=False)
            errors.print(
                f"  `sparkfleet describe {deployment.name}` and `sparkfleet logs {deployment.name}` say more."
            )
        for group in deployment.groups:
            if group.phase == "ready" and group.generation == deployment.generation:
                doubt = "" if is_predicted(deployment, group) else " (measured; not predicted)"
                console.print(f"{deployment.name} is ready: {measured_words(deployment, group)}{doubt}")
                for line in rung_lines(deployment, group):
                    console.print(f"  {line}", markup=False)
