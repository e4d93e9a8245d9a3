"""`sparkfleet selftest`: tests on the nodes what sparkfleet assumes of them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.fleet.doctor import NodesArgument
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, open_session, run
from sparkfleet.cli.output import console, fold
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.selftest import SelftestStep, selftest
from sparkfleet.fleet.selftest_verdicts import NAME, ON_CPUS, ON_GPUS
from sparkfleet.fleet.session import Session
from sparkfleet.specs.fields import quote

STYLES = {"ok": "green", "fault": "bold red", "skipped": "dim"}


def self_test(  # noqa: PLR0917  # its parameters are the command line's
    nodes: NodesArgument = None,
    engines: Annotated[
        bool,
        typer.Option("--engines/--no-engines", help="Start a small model on each node and over each link."),
    ] = True,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help=f"Model to start. Left out: {ON_GPUS} on a GPU, of 1.5 GB, {ON_CPUS} elsewhere.",
            show_default=False,
        ),
    ] = None,
    reboot: Annotated[
        str | None,
        typer.Option(
            "--reboot",
            metavar="NODE",
            help="Reboot this node at the end, and wait until it and what it serves are back.",
            show_default=False,
        ),
    ] = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
) -> int:
    """Test on your Sparks what sparkfleet assumes of them: facts, links, an engine. Exit code 1 on a fault."""
    return run(
        _selftest(open_session(inventory), nodes or [], engines=engines, model=model, reboot=reboot, yes=yes)
    )


async def _selftest(
    session: Session, nodes: list[str], *, engines: bool, model: str | None, reboot: str | None, yes: bool
) -> int:
    session.inventory.require_nodes([*nodes, *([reboot] if reboot else [])])
    if engines:
        console.print(
            f"A deployment {quote(NAME)} of a small model is started and ended on each node and over each link;"
            " its weights and the planned image are fetched if they are not there."
        )
    if reboot:
        console.print(f"{reboot} is rebooted at the end: what it serves is away until then.")
    if engines or reboot:
        confirm("Start?", yes)
    steps = []
    with ProgressLine() as progress:
        async for step in selftest(
            session, nodes, engines=engines, model=model, reboot=reboot, on_event=progress
        ):
            progress.done()
            steps.append(step)
            console.print(_line(step))
            if step.do:
                console.print(f"        {step.do}", markup=False)
    faults = [step.name for step in steps if step.verdict == "fault"]
    if not faults:
        console.print(f"{len(steps)} steps, no fault.")
        return Exit.DONE
    console.print(
        f"{len(faults)} of {len(steps)} steps have a fault. `sparkfleet bundle` collects what a report needs."
    )
    return Exit.ERROR


def _line(step: SelftestStep) -> Text:
    text = f"{step.verdict:<7} {step.name}: {step.words} · {step.seconds:.1f} s"
    found = Text(fold(text, console.width) if console.is_terminal else text)
    found.stylize(STYLES[step.verdict], 0, len(step.verdict))
    return found
