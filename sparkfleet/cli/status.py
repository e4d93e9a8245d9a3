"""`sparkfleet status`: the fleet at a glance."""

from __future__ import annotations

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, fleet_table, nodes_table, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run


def status(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show what runs."""
    return run(_status(Session(inventory), json))


async def _status(session: Session, json: bool) -> int:
    client = await session.find_controller()
    if client is None:
        if json:
            print_json({"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, "up": False})
        else:
            console.print(
                f"Fleet {session.inventory.fleet} is down. `sparkfleet apply FILE` or `sparkfleet up` starts it."
            )
        return Exit.DONE
    async with client:
        fleet = await client.fleet()
    if json:
        print_json({"up": True, **fleet.model_dump(mode="json")})
        return Exit.DONE
    console.print(f"fleet {fleet.fleet} · sparkfleet {fleet.sparkfleet} · endpoint {fleet.endpoint}\n")
    if len(fleet.nodes) > 1:
        console.print(nodes_table(fleet.nodes))
        console.print()
    console.print(fleet_table(fleet) if fleet.deployments else "Nothing is deployed.")
    return Exit.DONE
