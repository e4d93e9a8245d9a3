"""`sparkfleet logs`: prints the engine's own log."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.escapes import RawOutput
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.errors import SpecError
from sparkfleet.fleet.rank_logs import LoggedRank, rank_log
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_name import required_group


def logs(  # noqa: PLR0917  # its parameters are the command line's
    name: Annotated[
        str,
        typer.Argument(
            help="A deployment, or one of its groups as `drain` takes it: tiny/g1/0.",
            metavar="NAME|GROUP",
            show_default=False,
        ),
    ],
    inventory: InventoryOption = DEFAULT_INVENTORY,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as the log grows.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Lines to begin with.")] = 100,
    replica: Annotated[
        int | None,
        typer.Option(
            "--replica",
            min=0,
            help="Number of the replica, the last in a group's name. Left out: the lowest with a log.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Number of the rank in its group, from 0.")] = 0,
) -> int:
    """Print the log of one rank of a group's engine."""
    generation = None
    if "/" in name:
        if replica is not None:
            raise SpecError(
                f"{name} is one replica already.", do=f"Leave --replica out: `sparkfleet logs {name}`."
            )
        name, generation, replica = required_group(name)
    which = LoggedRank(name, generation, replica, rank)
    return run(_logs(open_session(inventory), which, follow=follow, tail=tail))


async def _logs(session: Session, logged: LoggedRank, *, follow: bool, tail: int) -> int:
    output = RawOutput()
    async for text in rank_log(session, logged, tail=tail, follow=follow):
        output.write(text)
    return Exit.DONE
