"""`sparkfleet usage`: requests and tokens by key and model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.controlplane.state.tables.usage_ledger import KEEP_DAYS, UsageRow
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.without_controller import client_or_trouble, stored_usage

Sum = Literal["all", "key", "model", "day"]
_COLUMNS: dict[Sum, tuple[str, ...]] = {
    "all": ("key", "model"),
    "key": ("key",),
    "model": ("model",),
    "day": ("day",),
}


def usage(
    *,
    days: Annotated[int, typer.Option(min=1, max=KEEP_DAYS, help="Of the last days, in UTC.")] = 30,
    by: Annotated[Sum, typer.Option(help="Rows: each key and model, or sums.")] = "all",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Show requests and tokens by key and model, also of a fleet that is down."""
    return run(_usage(open_session(inventory), days, by, json))


async def _usage(session: Session, days: int, by: Sum, json: bool) -> int:
    client, trouble = await client_or_trouble(session)
    rows: Sequence[UsageRow]
    if client is None:
        rows = await stored_usage(session, days, trouble)
    else:
        async with client:
            rows = await client.usage(days)
    if json:
        listed = [row.model_dump(mode="json") for row in rows]
        print_json({"version": OUTPUT_VERSION, "days": days, "usage": listed})
        return Exit.DONE
    if not rows:
        console.print(f"No request has been counted in {days} days.")
        return Exit.DONE
    console.print(_table(rows, by))
    if uncounted := sum(row.uncounted for row in rows):
        console.print(
            f"{uncounted} answers had no token count: their engines reported none.",
            markup=False,
        )
    return Exit.DONE


def _table(rows: Iterable[UsageRow], by: Sum) -> Table:
    columns = _COLUMNS[by]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    for column in ("requests", "prompt tokens", "answer tokens"):
        table.add_column(column, justify="right")
    for name, numbers in sums(rows, columns).items():
        table.add_row(*(Text(cell) for cell in (*name, *(f"{number:,}" for number in numbers))))
    return table


def sums(rows: Iterable[UsageRow], columns: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Requests, prompt tokens and answer tokens by these columns, in the order of their names."""
    found: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for row in rows:
        name = tuple(str(getattr(row, column)) for column in columns)
        requests, prompt, answer = found.get(name, (0, 0, 0))
        found[name] = requests + row.requests, prompt + row.input, answer + row.output
    return dict(sorted(found.items()))
