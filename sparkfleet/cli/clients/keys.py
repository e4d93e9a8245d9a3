"""`sparkfleet keys`: creates, lists, limits, rotates and revokes API keys of the endpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.cli.times import seconds_of, time_ahead
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


Requests = Annotated[
    int | None, typer.Option("--requests-per-minute", min=1, max=100_000, help="Requests in any minute.")
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-minute", min=1, max=1_000_000_000, help="Tokens of prompts and answers in any minute."
    ),
]
Concurrent = Annotated[int | None, typer.Option("--concurrent", min=1, max=100_000, help="Requests at once.")]
Batch = Annotated[bool, typer.Option("--batch", help="Its requests wait for those of other keys.")]
Expires = Annotated[
    str,
    typer.Option(
        "--expires", help="Refuse it after that: 12h, 30d, or a date such as 2027-01-31.", metavar="WHEN"
    ),
]

Admin = Annotated[
    bool,
    typer.Option(
        "--admin", help="It may stop, start and drain on the page, reads logs and sees every request there."
    ),
]


AdminOnly = Annotated[
    bool, typer.Option("--admin-only", help="As --admin, and its requests to models are refused.")
]


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
    limits = _limits(requests, tokens, concurrent, batch, expires, admin=admin, admin_only=admin_only)
    key_request(name, limits)  # a wrong name is named also if no fleet answers
    return run(_create(name, limits, open_session(inventory), json))


@app.command("limit")
def limit(
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
) -> int:
    """Replace the limits of a key by these: what is left out has no limit, and no admin's rights. Its text stays."""
    limits = _limits(requests, tokens, concurrent, batch, expires, admin=admin, admin_only=admin_only)
    return run(_limit(name, limits, open_session(inventory)))


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


async def _limit(name: str, limits: KeyLimits, session: Session) -> int:
    async with await session.controller() as client:
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
            limits = ", ".join(filter(None, (limits, f"old text until {_day(key.former_until)}")))
        cells = (key.name, key.id, _day(key.created), _day(key.used), limits, ", ".join(key.may_use))
        table.add_row(*(Text(cell or "–") for cell in cells))
    return table


def words_of(limits: KeyLimits) -> str:
    """The limits of a key in words; "" if it has none."""
    words = [
        f"{limits.requests_per_minute} requests/min" if limits.requests_per_minute else "",
        f"{limits.tokens_per_minute} tokens/min" if limits.tokens_per_minute else "",
        f"{limits.concurrent} at once" if limits.concurrent else "",
        "batch" if limits.priority == "batch" else "",
        ("admin" if limits.inference else "admin only") if limits.admin else "",
    ]
    if limits.expires is not None:
        words.append(f"{'expired' if limits.expires <= time.time() else 'until'} {_day(limits.expires)}")
    return ", ".join(filter(None, words))


def _limits(
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    batch: bool,
    expires: str,
    *,
    admin: bool,
    admin_only: bool,
) -> KeyLimits:
    return KeyLimits(
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent=concurrent,
        priority="batch" if batch else "interactive",
        expires=_expiry(expires) if expires else None,
        admin=admin or admin_only,
        inference=not admin_only,
    )


def _expiry(text: str) -> float:
    at = time_ahead(text)
    if at <= time.time():
        raise SpecError(
            f"{quote(text)} is in the past.",
            do="A key that nobody may use is revoked: `sparkfleet keys revoke NAME`.",
        )
    return at


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
