"""`sparkfleet backup` and `sparkfleet restore`: copies of the fleet's store, and what to do if it is lost."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.controlplane.state.store_copies import RestoredStore, StoreCopy
from sparkfleet.errors import SpecError
from sparkfleet.fleet.lifecycle.kept_copies import CopyElsewhere, copies_elsewhere
from sparkfleet.fleet.lifecycle.store import adopt_running, begin_anew, copy_store, list_copies, restore_copy
from sparkfleet.fleet.session import Session
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.units import duration_words, gb, moment_words, plural

CHUNK = 1 << 20
HINT = ("", "`sparkfleet restore COPY` puts one in place; `latest` is the newest sound one.")

ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FILE", help="Write the copy into FILE on this machine, too.", dir_okay=False
    ),
]
CopyArgument = Annotated[
    str, typer.Argument(metavar="COPY", help="Name of a copy, or `latest`. Without it: list them.")
]


def backup(
    to: ToOption = None, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Make a checked copy of the store now. The controller makes one after each change and every hour by itself."""
    return run(_backup(open_session(inventory), to, json))


def restore(  # noqa: PLR0917  # its parameters are the command line's
    copy: CopyArgument = "",
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make a store of exactly what runs, if the store is lost.")
    ] = False,
    anew: Annotated[
        str,
        typer.Option(
            "--begin-anew",
            metavar="FLEET",
            help="Forget deployments and keys, and end what runs. Takes the fleet's name.",
        ),
    ] = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """List the copies of the store, or put one in place. The file that was there is kept."""
    if sum(map(bool, (copy, adopt, anew))) > 1:
        raise SpecError(
            "COPY, `--adopt` and `--begin-anew` exclude each other.",
            do="Give one of them, or none to list the copies.",
        )
    session = open_session(inventory)
    if not (copy or adopt or anew):
        return run(_list(session, json))
    agree = partial(confirm, yes=yes)
    if adopt:
        return run(_restore(session, adopt_running(session, agree), json))
    if anew:
        return run(_restore(session, begin_anew(session, anew, agree), json))
    return run(_restore(session, restore_copy(session, copy, agree), json))


async def _backup(session: Session, to: Path | None, json: bool) -> int:
    made = await copy_store(session)
    if to is not None:
        write_atomically(to, await _content(session, made.path), durable=True)
    elsewhere = await copies_elsewhere(session, made.copy.name)
    if json:
        document = {"path": made.path, **made.copy.model_dump(mode="json"), "kept": _kept_document(elsewhere)}
        print_json({"version": OUTPUT_VERSION, **document})
        return Exit.DONE
    console.print(
        f"Copied and checked: {made.copy.name} in {Path(made.path).parent} on {session.inventory.head}."
    )
    if to is not None:
        console.print(f"The same is in {to} on this machine.", markup=False)
    for line in _kept_lines(elsewhere):
        console.print(line, markup=False)
    return Exit.DONE


async def _content(session: Session, path: str) -> bytes:
    parts: list[bytes] = []
    while part := await session.head.read(path, offset=sum(map(len, parts)), limit=CHUNK):
        parts.append(part)
    return b"".join(parts)


async def _list(session: Session, json: bool) -> int:
    found, elsewhere = await list_copies(session), await copies_elsewhere(session)
    if json:
        document = {"copies": [copy.model_dump(mode="json") for copy in found]}
        print_json({"version": OUTPUT_VERSION, **document, "kept": _kept_document(elsewhere)})
        return Exit.DONE
    for line in (*_lines(found), *_kept_lines(elsewhere), *(HINT if found else ())):
        console.print(line, markup=False)
    return Exit.DONE


def _lines(found: Sequence[StoreCopy]) -> list[str]:
    if not found:
        return ["There is no copy of the store."]
    lines = []
    for copy in found:
        at = moment_words(copy.at)
        names = ", ".join(copy.deployments) or "no deployment"
        content = copy.trouble or f"{plural(copy.changes, 'change')}; {names}"
        lines.append(f"{copy.name}  {at}  {copy.occasion}  {gb(copy.bytes)}  {content}")
    return lines


def _kept_lines(elsewhere: Iterable[CopyElsewhere]) -> Iterator[str]:
    for one in elsewhere:
        if not one.known:
            yield f"Not known of {one.node}: {one.trouble}."
        elif one.copy is None:
            yield f"Not on {one.node}: {one.trouble}."
        elif one.trouble:
            yield f"Kept on {one.node}: an older one, of {moment_words(one.copy.at)}; not the newest: {one.trouble}."
        else:
            since = duration_words(one.copy.since_s)
            yield f"Kept on {one.node}: the newest, of {moment_words(one.copy.at)}, for {since}."


def _kept_document(elsewhere: Iterable[CopyElsewhere]) -> list[dict[str, object]]:
    return [
        {
            "node": one.node,
            "copy": None if one.copy is None else one.copy.model_dump(mode="json"),
            "trouble": one.trouble,
        }
        for one in elsewhere
    ]


async def _restore(session: Session, work: Coroutine[Any, Any, RestoredStore], json: bool) -> int:
    done = await work
    if json:
        print_json(
            {"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, **done.model_dump(mode="json")}
        )
    else:
        _show(done)
    return Exit.DONE


def _show(done: RestoredStore) -> None:
    served = ", ".join(done.deployments) or "no deployment"
    console.print(
        f"The store was made from {done.source}: {served}, {plural(done.keys, 'key')}.", markup=False
    )
    if done.left_out:
        names = ", ".join(done.left_out)
        console.print(
            f"Not adopted, because it does not run: {names}. `sparkfleet apply FILE` brings it back."
        )
    if done.set_aside:
        console.print(f"The file that was there is now {done.set_aside}.", markup=False)
    console.print("A controller that waits continues within seconds: `sparkfleet status`.")
