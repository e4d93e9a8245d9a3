"""`sparkfleet keys`: creates, lists and revokes API keys of the endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.controlplane.state.api_keys import CONFIRM_S, KeyRow
from sparkfleet.fleet.session import Session

app = typer.Typer(help="API keys of the endpoint.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(help="A name for the key.", metavar="NAME", show_default=False)]


@app.command("create")
def create(
    name: KeyArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Make a key. It is shown once; only its hash is kept."""
    return run(_create(name, open_session(inventory), json))


@app.command("list")
def list_keys(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """List the keys: their names, never the keys."""
    return run(_list(open_session(inventory), json))


@app.command("revoke")
def revoke(name: KeyArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Revoke a key. Requests with it are refused from now on."""
    return run(_revoke(name, open_session(inventory)))


async def _create(name: str, session: Session, json: bool) -> int:
    async with await session.controller() as client:
        key = await client.create_key(name)
    _warn(key, "may refuse it")
    if json:
        print_json({"version": OUTPUT_VERSION, **key})
    else:
        console.print(f'API key "{name}", shown only this once; note it now: {key["key"]}')
    return Exit.DONE


async def _list(session: Session, json: bool) -> int:
    async with await session.controller() as client:
        keys = await client.keys()
    if json:
        listed = [key.model_dump(mode="json") for key in keys]
        print_json({"version": OUTPUT_VERSION, "keys": listed})
        return Exit.DONE
    console.print(_table(keys) if keys else "There is no key. `sparkfleet keys create NAME` makes one.")
    return Exit.DONE


def _table(keys: Sequence[KeyRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "id", "created", "last used", "may use"):
        table.add_column(column)
    for key in keys:
        cells = (key.name, key.id, _day(key.created), _day(key.used), ", ".join(key.may_use))
        table.add_row(*(Text(cell or "–") for cell in cells))
    return table


def _day(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def _warn(answer: Mapping[str, Any], does: str) -> None:
    """Gateways that have not confirmed the change within the controller's wait."""
    if late := answer.get("late"):
        errors.print(
            f"{len(late)} of the gateways did not confirm within {CONFIRM_S:.0f} s and {does} until they do;"
            " `sparkfleet status` shows them.",
            markup=False,
        )


async def _revoke(name: str, session: Session) -> int:
    async with await session.controller() as client:
        key = await client.revoke_key(name)
    _warn(key, "may accept it")
    console.print(f"Key {key['name']} was revoked: requests with it are refused from now on.")
    return Exit.DONE
