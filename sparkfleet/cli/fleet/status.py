"""`sparkfleet status`: shows the nodes and deployments of the fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import STATE_STYLE, as_parts, console, errors, fold, print_error, print_json
from sparkfleet.errors import SpecError
from sparkfleet.fleet.deployments.status import FleetOverview, find, fleet_state, no_deployment
from sparkfleet.fleet.nodes.surroundings import (
    SHOWING_S,
    NodeSurroundings,
    other_fleet_lines,
    other_fleets,
    surroundings_of,
)
from sparkfleet.fleet.planning.step_times import last_start_s, load_step_times
from sparkfleet.fleet.report.down_lines import down_lines
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import FleetPaths

EVERY_S = 1.0
"""Seconds between two readings of `--watch`."""


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="The only deployment that is shown.", metavar="NAME", show_default=False),
    ] = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again each second, until Ctrl-C.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Show the nodes and the deployments. A fleet that is down is no error; one whose state is not known is."""
    if watch and json:
        raise SpecError("--watch is for people.", do="`sparkfleet events --follow --json` is for programs.")
    session = open_session(inventory)
    return run(_watch(name, session) if watch else _status(name, session, json))


async def _status(name: str | None, session: Session, json: bool) -> int:
    found = await fleet_state(session)
    around = await surroundings_of(session.inventory, session.channels, SHOWING_S)
    if json:
        print_json(_document(name, found, around))
        return Exit.DONE if found.trouble is None else found.trouble.exit_code
    for line in other_fleet_lines(around):
        errors.print(line, markup=False)
    for warning in found.status.warnings:
        errors.print(f"warning: {warning}", markup=False)
    for line in _lines(name, found, around.get(session.inventory.head), session):
        console.print(_coloured(line))
    if found.trouble is None:
        return Exit.DONE
    print_error(found.trouble)
    return found.trouble.exit_code


async def _watch(name: str | None, session: Session) -> int:
    """Shows the status until it is interrupted: redrawn on a terminal, else the lines that have changed."""
    from rich.live import Live  # a slow import, needed here only

    shown: Sequence[str] = ()
    around = await surroundings_of(session.inventory, session.channels, SHOWING_S)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            found = await fleet_state(session)
            lines = [*_lines(name, found, around.get(session.inventory.head), session)]
            if found.trouble is not None:
                lines += [found.trouble.what, found.trouble.do]
            if console.is_terminal:
                live.update(Text("\n").join(map(_coloured, lines)), refresh=True)
            else:
                for line in (line for line in lines if line not in shown):
                    console.print(line, markup=False)
            shown = lines
            await asyncio.sleep(EVERY_S)


def _lines(
    name: str | None, found: FleetOverview, head: NodeSurroundings | None, session: Session
) -> list[str]:
    if found.trouble is not None:
        return [f"Fleet {found.status.fleet}: {found.condition.value}."]
    if not found.up:
        stored = head.generations if head is not None else None
        if name is not None and stored is not None and name not in stored:
            raise no_deployment(name, sorted(stored))
        return [*down_lines(found.status.fleet, head)]
    if name is not None:
        find(found.status, name)
    from sparkfleet.fleet.report.status_lines import fleet_lines  # with the predictor: a sixth of all imports

    times = load_step_times(FleetPaths.default(session.inventory.fleet).step_times)
    return [*fleet_lines(found.status, found.recent, time.time(), partial(last_start_s, times), name)]


def _document(
    name: str | None, found: FleetOverview, around: dict[str, NodeSurroundings]
) -> dict[str, object]:
    status = found.status
    if name is not None and found.up:
        status = status.model_copy(update={"deployments": (find(status, name),)})
    return {
        "up": found.up,
        "condition": found.condition.value,
        "reason": None if found.trouble is None else as_parts(found.trouble),
        **status.model_dump(mode="json"),
        "other_fleets": {
            name: [other.model_dump(mode="json") for other in others]
            for name, others in other_fleets(around).items()
        },
    }


def _coloured(line: str) -> Text:
    """A line folded to the terminal, with the state of its deployment in its colour."""
    text = Text(fold(line, console.width) if console.is_terminal else line)
    if not line.startswith(" "):
        for state, style in STATE_STYLE.items():
            text.highlight_regex(rf"(?<= · ){state}\b", style)
    return text
