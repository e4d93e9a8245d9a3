"""`sparkfleet logs`: prints the engine's own log."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.escapes import RawOutput
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, NameArgument, open_session, run
from sparkfleet.fleet.rank_logs import rank_log
from sparkfleet.fleet.session import Session


def logs(  # noqa: PLR0917  # its parameters are the command line's
    name: NameArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as the log grows.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Lines to begin with.")] = 100,
    replica: Annotated[int, typer.Option("--replica", min=0, help="Number of the replica, from 0.")] = 0,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Number of the rank in its group, from 0.")] = 0,
) -> int:
    """Print the log of one rank of a group's engine."""
    return run(_logs(name, open_session(inventory), follow, tail, (replica, rank)))


async def _logs(name: str, session: Session, follow: bool, tail: int, which: tuple[int, int]) -> int:
    replica, rank = which
    output = RawOutput()
    async for text in rank_log(session, name, replica=replica, rank=rank, tail=tail, follow=follow):
        output.write(text)
    return Exit.DONE
