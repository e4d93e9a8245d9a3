"""`sparkfleet bundle`: writes one file for a report, without secrets and identities."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.fleet.bundle.archive import replaced_words, with_readme, write_bundle
from sparkfleet.fleet.bundle.collect import collect
from sparkfleet.fleet.session import Session
from sparkfleet.units import gb


def bundle(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", show_default=False)
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print everything that would be in it, and write nothing.")
    ] = False,
    yes: YesOption = False,
) -> int:
    """Write one file for a report: facts, plans, events, logs, without secrets and identities. Nothing is sent."""
    return run(_bundle(open_session(inventory), output, show, yes))


async def _bundle(session: Session, output: Path | None, show: bool, yes: bool) -> int:
    found = await collect(session)
    for part in with_readme(found):
        if show:
            console.print(f"--- {part.path}", markup=False)
            console.print(part.text, markup=False)
        else:
            console.print(f"  {gb(len(part.text)):>9}  {part.path}", markup=False)
    for line in found.missing:
        console.print(f"  not there  {line}", markup=False)
    console.print(f"Replaced by stand-ins: {replaced_words(found.replaced)}.")
    if show:
        return Exit.DONE
    path = output or Path(f"sparkfleet-report-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")
    console.print("`sparkfleet bundle --show` prints all of it. Nothing is sent.")
    confirm(f"Write {path}?", yes)
    size = write_bundle(path, found)
    console.print(f"{path}: {gb(size)}. Read it before you attach it to a report.")
    return Exit.DONE
