"""`sparkfleet status`: the fleet at a glance."""

from __future__ import annotations

from typing import Any

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import console, fleet_table, nodes_table, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run
from sparkfleet.control.status import FleetStatus, NodeReport
from sparkfleet.spec.inventory import Inventory


def status(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show what runs, or that nothing does: `down` is an answer, and no error."""
    return run(_status(Session(inventory), json))


async def _status(session: Session, json: bool) -> int:
    client = await session.find_controller()
    if client is None:
        if json:
            print_json(_down(session.inventory))
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


def _down(inventory: Inventory) -> dict[str, Any]:
    """The fields of a fleet that is up, of one of which nothing is known: what it serves is on its head's disk."""
    unknown = FleetStatus(
        fleet=inventory.fleet,
        sparkfleet="",
        endpoint="",
        gateways=(),
        nodes=tuple(NodeReport(name=name, joined=False) for name in inventory.nodes),
        deployments=(),
        last_event=0,
    )
    return {"up": False, **unknown.model_dump(mode="json")}
