"""`sparkfleet down`: stops everything. The deployments are kept for the next `up`."""

from __future__ import annotations

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.bring_up import take_down
from sparkfleet.fleet.report.down_lines import taken_down_lines
from sparkfleet.fleet.session import Session


def down(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Stop the engines, the gateway, the controller and Ray. `up` or `apply` starts the deployments again."""
    return run(_down(open_session(inventory), json))


async def _down(session: Session, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        found = await take_down(session, progress)
    if json:
        print_json(
            {
                "version": OUTPUT_VERSION,
                "fleet": session.inventory.fleet,
                "up": False,
                "changed": found.was_up,
            }
        )
        return Exit.DONE
    for line in taken_down_lines(session.inventory.fleet, found):
        console.print(line, markup=False)
    return Exit.DONE
