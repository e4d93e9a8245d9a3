"""`sparkfleet status`: shows the nodes and deployments of the fleet."""

from __future__ import annotations

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import console, fleet_table, nodes_table, print_json
from sparkfleet.fleet.deployments import fleet_state
from sparkfleet.fleet.session import Session


def status(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show the nodes and the deployments. A fleet that is down is no error."""
    return run(_status(open_session(inventory), json))


async def _status(session: Session, json: bool) -> int:
    found = await fleet_state(session)
    fleet = found.status
    if json:
        print_json({"up": found.up, **fleet.model_dump(mode="json")})
        return Exit.DONE
    if not found.up:
        console.print(f"Fleet {fleet.fleet} is down. `sparkfleet apply FILE` or `sparkfleet up` starts it.")
        return Exit.DONE
    console.print(f"fleet {fleet.fleet} · sparkfleet {fleet.sparkfleet} · endpoint {fleet.endpoint}\n")
    if len(fleet.nodes) > 1:
        console.print(nodes_table(fleet.nodes))
        console.print()
    console.print(fleet_table(fleet) if fleet.deployments else "Nothing is deployed.")
    return Exit.DONE
