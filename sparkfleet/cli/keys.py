"""`sparkfleet keys`: creates, lists and revokes API keys of the endpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
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
    if json:
        print_json({"version": OUTPUT_VERSION, **key})
    else:
        console.print(f'API key "{name}", shown only this once; note it now: {key["key"]}')
    return Exit.DONE


async def _list(session: Session, json: bool) -> int:
    async with await session.controller() as client:
        keys = await client.keys()
    if json:
        print_json({"version": OUTPUT_VERSION, "keys": keys})
        return Exit.DONE
    for key in keys:
        console.print(f"{key['id']}  {key['name']}")
    return Exit.DONE


async def _revoke(name: str, session: Session) -> int:
    async with await session.controller() as client:
        key = await client.revoke_key(name)
    console.print(f"Key {key['name']} was revoked: requests with it are refused from now on.")
    return Exit.DONE
