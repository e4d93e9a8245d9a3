"""`sparkfleet models`: lists, downloads, copies and removes weights on the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

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
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.errors import SpecError
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.storage.models import (
    ModelRow,
    chosen_nodes,
    kept_lines,
    models_held,
    remove_models,
    stage_model,
    unused_models,
    whole_bytes,
)
from sparkfleet.remote.unreachable import Unreachable
from sparkfleet.staging.agent.scan import HeldVersion
from sparkfleet.staging.manifest import StagingItem
from sparkfleet.staging.settings import Need, Staged
from sparkfleet.units import gb, plural

app = typer.Typer(help="Weights on the nodes: list, download, copy, remove.", no_args_is_help=True)

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Hub id, with :TAG for a GGUF model; /directory; or builtin:NAME.",
        metavar="MODEL",
        show_default=False,
    ),
]
NodesOption = Annotated[
    str,
    typer.Option("--nodes", help="Names of nodes, separated by commas. Default: all.", show_default=False),
]
RevisionOption = Annotated[
    str, typer.Option("--revision", help="Branch, tag or commit. Default: main.", show_default=False)
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep", help="A model to keep although no deployment uses it. Repeatable.", show_default=False
    ),
]


@app.command("list")
def list_models(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """List the models in the nodes' Hub caches and copied directories; of an incomplete one the share that is there."""
    return run(_list(open_session(inventory), json))


def _require_owner(model: str, verb: str) -> None:
    """Raise SpecError for a name of the Hub without its owner: the Hub would answer that there is none, or nothing."""
    if "/" in model or model.startswith("builtin:"):
        return
    from sparkfleet.fleet.planning.published_names import (
        near_without_owner,  # reads tables, for this error only
    )

    like = [f"`sparkfleet models {verb} {one}`" for one in near_without_owner(model)]
    raise SpecError(
        f"{model}: a model of the Hub has the name of its owner.",
        do=f"Did you mean {' or '.join(like)}?"
        if like
        else "Give ORG/MODEL, or the absolute path of a directory.",
    )


def _bringing(hub: Literal["always", "never"]) -> Callable[..., int]:
    """The verb that stages a model on nodes, with or without the Hub."""

    def verb(
        model: ModelArgument,
        revision: RevisionOption = "",
        nodes: NodesOption = "",
        inventory: InventoryOption = DEFAULT_INVENTORY,
        json: JsonOption = False,
    ) -> int:
        _require_owner(model, "pull" if hub == "always" else "push")
        session = open_session(inventory)
        need = Need(
            wanted=StagingItem.model(model, revision or None),
            nodes=chosen_nodes(session.inventory, nodes),
            hub=hub,
        )
        return run(_stage(session, need, json, to_all=not nodes))

    return verb


app.command(
    "pull",
    help="Download a model from the Hub once, and copy it to the nodes over the rails. Gated models need HF_TOKEN.",
)(_bringing("always"))
app.command(
    "push", help="Copy a model from a node that has it to those that lack it. The Hub is not contacted."
)(_bringing("never"))


@app.command("prune")
def prune(
    keep: KeepOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Remove models that no deployment uses from the nodes' Hub caches, and interrupted copies. Asks first."""
    return run(_prune(open_session(inventory), frozenset(keep or ()), yes, json))


async def _list(session: Session, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        held = await models_held(session, progress)
    if json:
        print_json(
            {
                "version": OUTPUT_VERSION,
                "models": [_as_json(row) for row in held.rows],
                "nodes": {
                    node: {"free_bytes": free, "kv_bytes": held.kv_bytes.get(node, 0)}
                    for node, free in held.free_bytes.items()
                },
            }
        )
        return Exit.DONE
    console.print(model_table(held.rows) if held.rows else "No node has a model.")
    for line in interrupted_lines(held.rows):
        console.print(line, markup=False)
    if held.kv_bytes:
        kv = ", ".join(f"{gb(size)} on {node}" for node, size in held.kv_bytes.items())
        console.print(f"KV of prompts (`kv_disk`): {kv}.")
    free = ", ".join(f"{gb(size)} on {node}" for node, size in held.free_bytes.items())
    console.print(
        f"Free: {free}. `sparkfleet prune` shows what no deployment uses, and removes it if you agree."
    )
    return Exit.DONE


async def _stage(session: Session, need: Need, json: bool, *, to_all: bool) -> int:
    try:
        with ProgressLine(quiet=json) as progress:
            done = await stage_model(session, need, progress)
    except Unreachable as error:
        if to_all and len(need.nodes) > 1:
            error.do = f"{error.do} Or leave it out for now: `--nodes` with the names of the others."
        raise
    if json:
        print_json({"version": OUTPUT_VERSION, **done.model_dump(mode="json")})
    else:
        console.print(_summary(done))
    return Exit.DONE


async def _prune(session: Session, keep: frozenset[str], yes: bool, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        doomed = await unused_models(session, keep, progress)
    if doomed and not yes:
        (errors if json else console).print(model_table(doomed))
        confirm(f"Remove {plural(len(doomed), 'model')} from the nodes?")
    with ProgressLine(quiet=json) as progress:
        removed = await remove_models(session, doomed, progress)
    if json:
        print_json({"version": OUTPUT_VERSION, "removed": [one._asdict() for one in removed]})
    elif not doomed:
        console.print(
            "Nothing to remove: no model of the Hub's caches is unused, and no copy was interrupted."
        )
    else:
        freed = sum(size for one in removed for size in one.freed_bytes.values())
        gone = sum(1 for one in removed if one.freed_bytes)
        console.print(f"Removed {plural(gone, 'model')}: {gb(freed)} freed.")
        for line in kept_lines(removed):
            console.print(line, markup=False)
    return Exit.DONE


def model_table(rows: Iterable[ModelRow]) -> Table:
    """Models with their sizes and nodes, as `models list` prints them."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("MODEL", overflow="fold")  # the end of a path is its name
    for heading in ("REVISION", "SIZE", "ON"):
        table.add_column(heading)
    for row in rows:
        first, nodes = row
        total = whole_bytes(row)
        on = ", ".join(_share(node, held, total) for node, held in nodes.items())
        revision = " ".join((first.commit[:7], *first.revisions)).strip()
        table.add_row(first.name, revision or "–", gb(total), on)
    return table


def interrupted_lines(rows: Iterable[ModelRow]) -> Iterator[str]:
    """A line for each interrupted copy of a directory, with the commands that continue and remove it."""
    for row in rows:
        for node, held in row[1].items():
            if held.is_interrupted:
                goes_on = (
                    "the next `sparkfleet apply` that needs it continues it"
                    if held.kind == "image"
                    else f"`sparkfleet models push {held.name} --nodes {node}` continues it"
                )
                yield (
                    f"{node}: the copy of {held.name} was interrupted, {gb(held.held_bytes)} of {gb(whole_bytes(row))} "
                    f"are in {held.path}: {goes_on}, `sparkfleet models prune` removes it."
                )


def _share(node: str, held: HeldVersion, total: int) -> str:
    """`spark1`, or `spark2 62 %` if files are missing."""
    if held.complete:
        return node
    return f"{node} {100 * held.held_bytes / total if total else 0:.0f} %"


def _as_json(row: ModelRow) -> dict[str, Any]:
    first, nodes = row
    return {
        "model": first.name,
        "kind": first.kind,
        "commit": first.commit,
        "revisions": list(first.revisions),
        "bytes": whole_bytes(row),
        "nodes": {
            node: {
                "complete": held.complete,
                "interrupted": held.is_interrupted,
                "bytes": held.held_bytes,
                "path": held.path,
            }
            for node, held in nodes.items()
        },
    }


def _summary(done: Staged) -> str:
    commit = f" at {done.commit[:7]}" if done.commit else ""
    moved = f"{gb(done.moved_bytes)} moved" if done.moved_bytes else "nothing had to be copied"
    return f"{done.wanted.name}{commit} is on {', '.join(done.paths)}; {moved}."
