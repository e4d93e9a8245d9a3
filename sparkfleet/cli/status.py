"""`sparkfleet status`: shows the nodes and deployments of the fleet."""

from __future__ import annotations

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import console, errors, fleet_table, nodes_table, print_error, print_json
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments import fleet_state
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.surroundings import SHOWING_S, other_fleet_lines, other_fleets, surroundings_of


def status(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show the nodes and the deployments. A fleet that is down is no error; one whose state is not known is."""
    return run(_status(open_session(inventory), json))


async def _status(session: Session, json: bool) -> int:
    found = await fleet_state(session)
    fleet, trouble = found.status, found.trouble
    around = await surroundings_of(session.inventory, session.channels, SHOWING_S)
    for line in () if json else other_fleet_lines(around):
        errors.print(line, markup=False)
    if json:
        print_json(
            {
                "up": found.up,
                "condition": found.condition.value,
                "reason": None if trouble is None else _parts(trouble),
                **fleet.model_dump(mode="json"),
                "other_fleets": {
                    name: [other.model_dump(mode="json") for other in others]
                    for name, others in other_fleets(around).items()
                },
            }
        )
    elif trouble is not None:
        console.print(f"Fleet {fleet.fleet}: {found.condition.value}.", markup=False)
        print_error(trouble)
    elif not found.up:
        console.print(f"Fleet {fleet.fleet} is down. `sparkfleet apply FILE` or `sparkfleet up` starts it.")
    else:
        _show(fleet)
    return Exit.DONE if trouble is None else trouble.exit_code


def _show(fleet: FleetStatus) -> None:
    console.print(f"fleet {fleet.fleet} · sparkfleet {fleet.sparkfleet} · endpoint {fleet.endpoint}\n")
    for warning in fleet.warnings:
        errors.print(f"warning: {warning}", markup=False)
    if len(fleet.nodes) > 1:
        console.print(nodes_table(fleet.nodes))
        console.print()
    console.print(fleet_table(fleet) if fleet.deployments else "Nothing is deployed.")


def _parts(error: SparkfleetError) -> dict[str, str]:
    return {"what": error.what, "means": error.means, "do": error.do}
