"""`sparkfleet keys`: creates, lists, limits, rotates and revokes API keys of the endpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sparkfleet.cli.clients.key_limits import (
    Admin,
    AdminOnly,
    Batch,
    Concurrent,
    Expires,
    NewAdmin,
    NewAdminOnly,
    NewBatch,
    NewConcurrent,
    NewExpires,
    NewRequests,
    NewTokens,
    Requests,
    Tokens,
    changed_limits,
    changes,
    day_of,
    limits_of,
    words_of,
)
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.cli.times import seconds_of
from sparkfleet.controlplane.api.api_models import LONGEST_GRACE_S
from sparkfleet.controlplane.api.client import FleetClient, key_request
from sparkfleet.controlplane.state.api_keys import CONFIRM_S, KeyRow
from sparkfleet.errors import SpecError
from sparkfleet.fleet.known_names import remember_names
from sparkfleet.fleet.lifecycle.internal_secrets import begin_change, finish_change
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.without_controller import client_or_trouble, stored_keys
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.specs.fields import quote

app = typer.Typer(help="API keys of the endpoint.", no_args_is_help=True)

FINISH = "sparkfleet keys rotate-internal --finish"
RAY_STAYS = "Ray's token stays: Ray knows one, from its start to its end."
KEYS_STAY = "So does the key that seals `env` of deployments."

KeyArgument = Annotated[str, typer.Argument(help="A name for the key.", metavar="NAME", show_default=False)]


@app.command("create")
def create(
    name: KeyArgument,
    *,
    requests: Requests = None,
    tokens: Tokens = None,
    concurrent: Concurrent = None,
    batch: Batch = False,
    expires: Expires = "",
    admin: Admin = False,
    admin_only: AdminOnly = False,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Make a key. It is shown once; only its hash is kept. Without limits it has none."""
    limits = limits_of(requests, tokens, concurrent, batch, expires, admin=admin, admin_only=admin_only)
    key_request(name, limits)  # a wrong name is named also if no fleet answers
    return run(_create(name, limits, open_session(inventory), json))


@app.command("limit")
def limit(
    name: KeyArgument,
    *,
    requests: NewRequests = None,
    tokens: NewTokens = None,
    concurrent: NewConcurrent = None,
    batch: NewBatch = None,
    expires: NewExpires = "",
    admin: NewAdmin = None,
    admin_only: NewAdminOnly = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
) -> int:
    """Change limits of a key: what is left out stays as it is, as does its text."""
    given = changes(requests, tokens, concurrent, expires, batch=batch, admin=admin, admin_only=admin_only)
    if not given:
        raise SpecError(
            f"No limit of {name} is given, so none changes.",
            do=f"`sparkfleet keys list` has its limits; `sparkfleet keys limit {name} --concurrent 4` changes one, and 0"
            " takes it away.",
        )
    return run(_limit(name, given, open_session(inventory)))


@app.command("rotate")
def rotate(
    name: KeyArgument,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            help="Accept the old text for so long: 0, 30m, 12h, 7d, at most 90d. Those before it keep their own end; with 0"
            " all are refused at once.",
            metavar="TIME",
        ),
    ] = "0",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Give a key a new text, shown once. Name and limits stay; the old text is refused, at once or after a grace."""
    grace_s = seconds_of(grace)
    if grace_s > LONGEST_GRACE_S:
        raise SpecError(
            f"{quote(grace)} is longer than {LONGEST_GRACE_S // 86400} days, for which an old text may be accepted.",
            do="A shorter --grace; or `sparkfleet keys create NAME` makes another key, and both are accepted.",
        )
    return run(_rotate(name, grace_s, open_session(inventory), json))


@app.command("rotate-internal")
def rotate_internal(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    *,
    finish: Annotated[
        bool, typer.Option("--finish", help="End the change: former tokens are refused.")
    ] = False,
) -> int:
    """Renew the tokens of the controller's API, of engines and of their metrics, while the fleet serves. API keys stay."""
    return run((_finish_internal if finish else _rotate_internal)(open_session(inventory)))


@app.command("list")
def list_keys(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """List the keys: their names, never the keys. Works on a fleet that is down, too."""
    return run(_list(open_session(inventory), json))


@app.command("revoke")
def revoke(name: KeyArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Revoke a key. Requests with it are refused from now on."""
    return run(_revoke(name, open_session(inventory)))


async def _create(name: str, limits: KeyLimits, session: Session, json: bool) -> int:
    async with await session.controller() as client:
        key = await client.create_key(name, limits)
        await _remember(session, client)
    return _show(name, key, json)


async def _limit(name: str, given: Mapping[str, Any], session: Session) -> int:
    async with await session.controller() as client:
        found = next((row.limits for row in await client.keys() if name in {row.name, row.id}), KeyLimits())
        limits = changed_limits(name, found, given)
        key = await client.limit_key(name, limits)
    _warn(key, "may use the former limits")
    console.print(f"Key {key['name']}: {words_of(limits) or 'no limits'}.", markup=False)
    return Exit.DONE


async def _rotate(name: str, grace_s: float, session: Session, json: bool) -> int:
    async with await session.controller() as client:
        key = await client.rotate_key(name, grace_s)
    return _show(name, key, json)


async def _rotate_internal(session: Session) -> int:
    change = await begin_change(session)
    if change is None:
        console.print(
            "The fleet is down: all tokens are new, Ray's too. The nodes get them with `sparkfleet up`."
        )
        return Exit.DONE
    console.print(
        "The controller has a new API token; engines that start now get new tokens. Former ones are accepted."
    )
    for node in change.unreached:
        errors.print(f"Not reached: {node}. Its engines start with former tokens.", markup=False)
    if change.former:
        names = ", ".join(change.former)
        console.print(f"An engine keeps its token until it restarts: {names}.", markup=False)
    steps = [*(f"`sparkfleet restart {name}`" for name in change.former), f"`{FINISH}`"]
    console.print(f"Next: {', then '.join(steps)}.", markup=False)
    console.print(f"{RAY_STAYS} {KEYS_STAY}")
    return Exit.DONE


async def _finish_internal(session: Session) -> int:
    await finish_change(session)
    console.print(
        "The change is finished: the former API token and the former tokens of engines are refused."
    )
    console.print(
        f"Engines that started during the change take the former metrics token until they restart. {RAY_STAYS}"
    )
    return Exit.DONE


def _show(name: str, key: Mapping[str, Any], json: bool) -> int:
    _warn(key, "may refuse it")
    if json:
        print_json({"version": OUTPUT_VERSION, **key})
    else:
        console.print(f'API key "{name}", shown only this once; note it now: {key["key"]}')
    return Exit.DONE


async def _list(session: Session, json: bool) -> int:
    client, trouble = await client_or_trouble(session)
    if client is None:
        keys: Sequence[KeyRow] = await stored_keys(session, trouble)
    else:
        async with client:
            keys = await _remember(session, client)
    if json:
        listed = [key.model_dump(mode="json") for key in keys]
        print_json({"version": OUTPUT_VERSION, "keys": listed})
        return Exit.DONE
    console.print(_table(keys) if keys else "There is no key. `sparkfleet keys create NAME` makes one.")
    return Exit.DONE


async def _remember(session: Session, client: FleetClient) -> list[KeyRow]:
    """The keys; their names are kept for completion."""
    keys = await client.keys()
    remember_names(session.inventory.fleet, keys=[key.name for key in keys])
    return keys


def _table(keys: Sequence[KeyRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "id", "created", "last used", "limits", "may use"):
        table.add_column(column)
    for key in keys:
        limits = words_of(key.limits)
        if key.former_until is not None and key.former_until > time.time():
            limits = ", ".join(filter(None, (limits, f"old text until {day_of(key.former_until)}")))
        cells = (key.name, key.id, day_of(key.created), day_of(key.used), limits, ", ".join(key.may_use))
        table.add_row(*(Text(cell or "–") for cell in cells))
    return table


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
        before = await client.keys()
        key = await client.revoke_key(name)
        after = await _remember(session, client)
    _warn(key, "may accept it")
    console.print(f"Key {key['name']} was revoked: requests with it are refused from now on.")
    usable = {model for row in after for model in row.may_use}
    lost = [
        model for row in before if row.name == key["name"] for model in row.may_use if model not in usable
    ]
    if lost:
        errors.print(
            f"No key that is left may use {', '.join(lost)}, so every request for it is refused."
            f" `sparkfleet keys create {key['name']}` makes a key that may.",
            markup=False,
        )
    return Exit.DONE
