"""`sparkfleet route`: the group that a request would go to, and the forecast of each group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sparkfleet.cli.clients.ask import KeyOption, key_of
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.fleet.clients.route import explain as explain_request
from sparkfleet.fleet.session import Session


def route(
    request: Annotated[
        Path,
        typer.Argument(
            help="A file with the body of a request, JSON; -: standard input.", metavar="REQUEST.json"
        ),
    ],
    key: KeyOption = "",
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="What this verb does anyway.", hidden=True)
    ] = True,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Show which group a request would go to now, and why. No engine gets it."""
    return run(_route(open_session(inventory), request, key_of(key), json))


async def _route(session: Session, request: Path, key: str, json: bool) -> int:
    answer = await explain_request(session, request, key)
    if json:
        print_json({"version": OUTPUT_VERSION, **answer})
        return Exit.DONE
    console.print(f"{answer['model']} → {answer['group'] or 'no group'}: {answer['why']}", markup=False)
    console.print(_table(answer["groups"]))
    for name, why in answer["left_out"].items():
        console.print(f"{name}: {why}", markup=False)
    return Exit.DONE


def _table(groups: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("group", "finish s", "wait s", "prefill s", "decode s", "cached", ""):
        table.add_column(column)
    for one in groups:
        doubts = [
            one.get("external", ""),
            "full" if one.get("full") else "",
            f"circuit {one['circuit']}" if one.get("circuit") else "",
            f"{one['missing_context']} tokens too short" if one.get("missing_context") else "",
            "capabilities unknown" if one.get("unknown_capabilities") else "",
        ]
        numbers = (f"{one[name]:.2f}" for name in ("finish_s", "wait_s", "prefill_s", "decode_s"))
        cells = (one["group"], *numbers, str(one["warm_tokens"]), ", ".join(filter(None, doubts)))
        table.add_row(*(Text(cell) for cell in cells))
    return table
