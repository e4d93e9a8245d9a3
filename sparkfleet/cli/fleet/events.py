"""`sparkfleet events`: prints what happened in the fleet, and follows it."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, event_line, print_json
from sparkfleet.cli.times import time_ago
from sparkfleet.controlplane.state.event import Event
from sparkfleet.fleet.deployments.status import follow_events, read_events
from sparkfleet.fleet.session import Session
from sparkfleet.units import moment_words

LAST = 50
"""Number of events without an option."""


def events(  # noqa: PLR0917  # its parameters are the command line's
    name: Annotated[
        str | None,
        typer.Argument(
            help="A deployment, or what an event's line begins with: a group, a node, a key. Left out: the whole fleet.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            "-n",
            min=0,
            help="Number of events. Left out: 50, or all with --since.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Events since then only: 2h, 3d, or a local date such as 2027-01-31T10:00.",
            metavar="WHEN",
            show_default=False,
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events as they happen.")] = False,
    json: JsonOption = False,
) -> int:
    """Print events of the fleet, each with its reason, oldest first."""
    at = time_ago(since) if since else None
    return run(_events(name, open_session(inventory), last, at, follow=follow, json=json))


async def _events(
    name: str | None, session: Session, last: int | None, since: float | None, *, follow: bool, json: bool
) -> int:
    if last is None and since is None:
        last = LAST
    found, seen = await read_events(session, name, last, since or 0.0, yet_to_come=follow)
    if json and not follow:
        listed = [event.model_dump(mode="json") for event in found]
        print_json({"version": OUTPUT_VERSION, "events": listed})
        return Exit.DONE
    for event in found:
        _print(event, json)
    if follow:
        await follow_events(session, name, seen, lambda event: _print(event, json))
    if not found and not json:
        console.print(
            f"No events{f' of {name}' if name else ''}{f' since {moment_words(since)}' if since else ''}."
        )
    return Exit.DONE


def _print(event: Event, json: bool) -> None:
    if json:
        print_json({"version": OUTPUT_VERSION, "event": event.model_dump(mode="json")})
    else:
        console.print(event_line(event))
