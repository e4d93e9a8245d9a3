"""`sparkfleet observe`: files with which Prometheus, Alertmanager and Grafana watch the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.fleet.observe.containers import observe_down, observe_up
from sparkfleet.fleet.observe.files import place_of, write_files
from sparkfleet.fleet.session import Session
from sparkfleet.telemetry.observe_containers import PASSWORD_FILE, ObservePart, ObservePorts

app = typer.Typer(help="Prometheus, Alertmanager and Grafana for the fleet.", no_args_is_help=True)

DirectoryArgument = Annotated[
    Path, typer.Argument(help="Directory for the files.", metavar="DIR", show_default=False, file_okay=False)
]

HostOption = Annotated[
    str,
    typer.Option("--host", help="Address of Grafana, which has a login. The others stay on loopback."),
]
PortOption = Annotated[int, typer.Option("--port", help="Port of Grafana.", min=1, max=65_535)]


@app.callback()
def _group() -> None:
    """Prometheus, Alertmanager and Grafana for the fleet."""


@app.command("config")
def config(
    directory: DirectoryArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Write prometheus.yml, rules, alertmanager.yml and Grafana's dashboards for this fleet. Starts nothing."""
    return run(_config(directory, open_session(inventory), json))


@app.command("up")
def up(
    host: HostOption = "127.0.0.1",
    port: PortOption = 3000,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Start Prometheus, Alertmanager and Grafana in containers on the head, with the fleet's dashboards and alerts."""
    return run(_up(open_session(inventory), ObservePorts(host=host, grafana=port), json))


@app.command("down")
def down(inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Stop these containers. What they recorded is kept."""
    return run(_down(open_session(inventory)))


async def _up(session: Session, ports: ObservePorts, json: bool) -> int:
    def show(part: ObservePart) -> None:
        if not json:
            console.print(f"{part} works.")

    host = await observe_up(session, ports, show)
    password = f"{host.directory}/{PASSWORD_FILE}"
    url = f"http://{ports.host}:{ports.grafana}"
    if json:
        print_json({"version": OUTPUT_VERSION, "grafana": url, "user": "admin", "password_file": password})
        return Exit.DONE
    head = session.inventory.head
    console.print(f"Grafana: {url} on {head}, user admin, password in {password} there.", markup=False)
    if ports.host.startswith("127."):
        words = f"From another machine: `ssh -L {ports.grafana}:{ports.host}:{ports.grafana} {head}`."
        console.print(words, markup=False)
    console.print(
        f"Alerts go to the receivers in {host.directory}/alertmanager.yml on {head}, at first to none:"
        " edit it, then run this again.",
        markup=False,
    )
    return Exit.DONE


async def _down(session: Session) -> int:
    host, stopped = await observe_down(session)
    if not stopped:
        console.print(f"No change: none of these containers is on {session.inventory.head}.", markup=False)
        return Exit.DONE
    console.print(f"Stopped. The data is in {host.directory}/data on {session.inventory.head}.", markup=False)
    return Exit.DONE


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
        f"Prometheus finds its targets at {place.api}/targets on {session.inventory.head}, at every start.",
        markup=False,
    )
    console.print(
        f"They are for {session.inventory.head}, the head: its controller and the engines' token are there."
        f" {directory / 'README.md'} has the commands.",
        markup=False,
    )
    return Exit.DONE
