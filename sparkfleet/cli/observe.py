"""`sparkfleet observe`: files with which Prometheus, Alertmanager and Grafana watch the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.fleet.observe import place_of, write_files
from sparkfleet.fleet.session import Session

app = typer.Typer(help="Prometheus, Alertmanager and Grafana for the fleet.", no_args_is_help=True)

DirectoryArgument = Annotated[
    Path, typer.Argument(help="Directory for the files.", metavar="DIR", show_default=False, file_okay=False)
]


@app.callback()
def _group() -> None:
    """Prometheus, Alertmanager and Grafana for the fleet."""


@app.command("config")
def config(
    directory: DirectoryArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Write prometheus.yml, rules, alertmanager.yml and Grafana's dashboards for this fleet. Starts nothing."""
    return run(_config(directory, open_session(inventory), json))


async def _config(directory: Path, session: Session, json: bool) -> int:
    place = await place_of(session)
    done = write_files(directory, place)
    if json:
        print_json({"version": OUTPUT_VERSION, "directory": str(directory), **done.model_dump(mode="json")})
        return Exit.DONE
    console.print(
        f"{len(done.written)} files written in {directory}, {len(done.unchanged)} unchanged.", markup=False
    )
    for name in done.kept:
        console.print(f"Kept as it is: {name}, which you have edited.", markup=False)
    console.print(
        f"They are for {session.inventory.head}, the head: its controller and the engines' token are there."
        f" {directory / 'README.md'} has the commands.",
        markup=False,
    )
    return Exit.DONE
