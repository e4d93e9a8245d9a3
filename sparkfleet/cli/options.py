"""Options that several verbs have, and the run of a verb's coroutine with its session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sparkfleet.cli.loading import loading
from sparkfleet.cli.output import errors
from sparkfleet.errors import NodeError, UnreachableError

if TYPE_CHECKING:  # slow imports, which a verb without a session does without
    from sparkfleet.fleet.events import UseCaseEvent
    from sparkfleet.fleet.session import Session
    from sparkfleet.specs.inventory import Inventory

T = TypeVar("T")

INVENTORY_VARIABLE = "SPARKFLEET_INVENTORY"
InventoryOption = Annotated[
    Path,
    typer.Option(
        "--inventory", "-i", envvar=INVENTORY_VARIABLE, help="Inventory of the fleet.", show_default=True
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with a version field, for programs.")]


def _offline(value: bool) -> bool:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return value


OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        callback=_offline,
        help="Do not contact the Hub for sizes; HF_HUB_OFFLINE=1 does the same.",
    ),
]
NameArgument = Annotated[
    str, typer.Argument(help="The deployment's name.", metavar="NAME", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

DEFAULT_INVENTORY = Path("inventory.yaml")

_opened: list[Session] = []
"""Sessions of this process (one verb); they are closed when its coroutine ends."""


def open_session(inventory: Path | Inventory, *, quiet: bool = False) -> Session:
    """Open the session of a verb; `run` closes it. Troubles of the controller are printed on stderr, unless quiet."""
    loading.show("assuming idle Sparks" if not isinstance(inventory, Path) else f"reading {inventory}")
    from sparkfleet.fleet.events import ignored
    from sparkfleet.fleet.session import Session

    session = Session(inventory, ignored if quiet else _print_trouble)
    _opened.append(session)
    loading.show(f"reading fleet {session.inventory.fleet}")
    return session


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a verb's coroutine to its end, and close its sessions."""
    return asyncio.run(_closing(work))


async def _closing(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().set_exception_handler(partial(_report, task))
    try:
        return await work
    except UnreachableError:
        raise
    except NodeError:
        for session in _opened:  # with the head away the exit code is its own, whichever node failed first
            await session.require_head()
        raise
    finally:
        for session in _opened:
            await session.close()
        _opened.clear()


def _report(verb: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Reports an error of a callback, except for one of asyncio itself after Ctrl-C.

    Ctrl-C cancels the task between any two instructions, also in `asyncio.futures._copy_future_state`, between its look
    whether the future is cancelled and the result that it sets (CPython 3.11).
    """
    if not (verb.cancelling() and isinstance(context.get("exception"), asyncio.InvalidStateError)):
        loop.default_exception_handler(context)


def _print_trouble(event: UseCaseEvent) -> None:
    from sparkfleet.fleet.events import TroubleFound

    if isinstance(event, TroubleFound):
        errors.print(event.line, markup=False)
