"""`sparkfleet models`: which weights are on which nodes, and how they get there."""

from __future__ import annotations

import json as js
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from sparkfleet.cli.agree import agree
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, YesOption, run
from sparkfleet.cli.watch import Progress as Line
from sparkfleet.control.status import FleetStatus
from sparkfleet.errors import SpecError
from sparkfleet.staging.arrive import RESERVE_BYTES
from sparkfleet.staging.fleet import Fleet
from sparkfleet.staging.look import Held, Seen
from sparkfleet.staging.manifest import Wanted
from sparkfleet.staging.progress import Progress
from sparkfleet.staging.remove import Removed, RemoveRequest
from sparkfleet.staging.settings import Need, Settings, Staged
from sparkfleet.staging.stage import stage, survey

app = typer.Typer(help="Weights: where they are, and how they get there.", no_args_is_help=True)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)

ModelArgument = Annotated[
    str,
    typer.Argument(help="Hub id, /directory or builtin:NAME.", metavar="MODEL", show_default=False),
]
NodesOption = Annotated[
    str, typer.Option("--nodes", help="Names with commas between. Left out: all nodes.", show_default=False)
]
RevisionOption = Annotated[
    str, typer.Option("--revision", help="Branch, tag or commit. Left out: main.", show_default=False)
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep", help="A model to keep, besides those of deployments. May be repeated.", show_default=False
    ),
]


@app.command("list")
def list_models(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show every model in the caches of the nodes: whole, or how much of it."""
    return run(_list(Session(inventory), json))


def _bringing(hub: Literal["always", "never"]) -> Callable[..., int]:
    """The verb that brings a model to nodes, from the Hub or not."""

    def verb(
        model: ModelArgument,
        revision: RevisionOption = "",
        nodes: NodesOption = "",
        inventory: InventoryOption = DEFAULT_INVENTORY,
        json: JsonOption = False,
    ) -> int:
        session = Session(inventory)
        need = Need(wanted=Wanted.model(model, revision or None), nodes=_chosen(session, nodes), hub=hub)
        return run(_stage(session, need, json))

    return verb


app.command(
    "pull",
    help="Download a model from the Hub once, and copy it to the nodes over the rails. HF_TOKEN opens gated ones.",
)(_bringing("always"))
app.command("push", help="Copy a model that some node has to those that lack it. The Hub is not asked.")(
    _bringing("never")
)


@app.command("prune")
def prune(
    keep: KeepOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Remove models that no deployment uses from the Hub's caches of the nodes. Asks first."""
    return run(_prune(Session(inventory), frozenset(keep or ()), yes, json))


async def _list(session: Session, json: bool) -> int:
    settings = await _settings(session)
    seen = await survey(session.channels, _Shown(quiet=json).progress, settings=settings)
    rows = grouped(seen)
    if json:
        print_json(
            {"version": OUTPUT_VERSION, "models": [_as_json(row) for row in rows], "nodes": _room(seen)}
        )
        return Exit.DONE
    console.print(_table(rows) if rows else "There is no model on any node.")
    return Exit.DONE


async def _stage(session: Session, need: Need, json: bool) -> int:
    shown = _Shown(quiet=json)
    settings = await _settings(session)
    try:
        done = (await stage(session.inventory, session.channels, [need], shown.progress, settings=settings))[
            0
        ]
    finally:
        shown.done()
    if json:
        print_json({"version": OUTPUT_VERSION, **done.model_dump(mode="json")})
    else:
        console.print(_summary(done))
    return Exit.DONE


async def _prune(session: Session, keep: frozenset[str], yes: bool, json: bool) -> int:
    async with await session.controller() as client:
        used = used_names(await client.fleet()) | keep
    settings = await _settings(session)
    shown = _Shown(quiet=json)
    seen = await survey(session.channels, shown.progress, settings=settings)
    doomed = [row for row in grouped(seen) if row[0].kind == "hub" and row[0].name not in used]
    if doomed and not yes:
        (errors if json else console).print(_table(doomed))
        agree(f"Remove {_counted(len(doomed))} from the nodes?")
    fleet = Fleet(session.channels, settings, shown.progress)
    removed = [await _removed(fleet, held, nodes) for held, nodes in doomed]
    if json:
        print_json({"version": OUTPUT_VERSION, "removed": removed})
    elif not doomed:
        console.print("There is nothing to remove.")
    else:
        freed = sum(size for one in removed for size in one["freed_bytes"].values())
        console.print(f"Removed {_counted(len(doomed))}: {size_text(freed)} are free again.")
    return Exit.DONE


async def _removed(fleet: Fleet, held: Held, nodes: Mapping[str, Held]) -> dict[str, Any]:
    freed = {}
    for node in nodes:
        request = RemoveRequest(name=held.name, commit=held.commit, cache=fleet.settings.cache_on(node))
        freed[node] = (await fleet.ask(node, "remove", request, Removed)).freed_bytes
    return {"model": held.name, "commit": held.commit, "freed_bytes": freed}


async def _settings(session: Session) -> Settings:
    """The Python of sparkfleet on every node, and this user's token, if there is one."""
    line = Line()
    try:
        pythons = await session.pythons(line.passing)
    finally:
        line.done()
    return Settings(
        python=pythons,
        endpoint=os.environ.get("HF_ENDPOINT", ""),
        token=os.environ.get("HF_TOKEN", "").strip(),
        reserve_bytes=RESERVE_BYTES,
    )


def _chosen(session: Session, nodes: str) -> tuple[str, ...]:
    """The nodes that were named, or all. Raises SpecError for one that is not in the inventory."""
    known = tuple(session.inventory.nodes)
    chosen = tuple(dict.fromkeys(name.strip() for name in nodes.split(",") if name.strip())) or known
    for name in chosen:
        if name not in known:
            raise SpecError(f"--nodes: there is no node {name!r}. Known: {', '.join(known)}.")
    return chosen


Row = tuple[Held, dict[str, Held]]
"""A version of a model, and what each node that has some of it has."""


def grouped(seen: Mapping[str, Seen]) -> list[Row]:
    """What all nodes have, by model and commit. The first of each row is the fullest."""
    rows: dict[tuple[str, str, str], dict[str, Held]] = {}
    for node, found in seen.items():
        for held in found.everything:
            rows.setdefault((held.kind, held.name, held.commit), {})[node] = held
    return [(max(nodes.values(), key=_fullness), nodes) for _, nodes in sorted(rows.items())]


def used_names(status: FleetStatus) -> frozenset[str]:
    """Every name that a deployment's specification or plan mentions: models, drafts, variants. Rather one too many."""
    found: set[str] = set()
    for deployment in status.deployments:
        plan = deployment.plan.model_dump(mode="json") if deployment.plan is not None else {}
        for text in _texts([js.loads(deployment.spec or "{}"), plan]):
            found.add(text.partition("@")[0])
            found.update(_HUB_ID.findall(text))  # engine arguments may be JSON
    return frozenset(found)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield str(key)
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _fullness(held: Held) -> tuple[bool, int]:
    return held.complete, held.held_bytes


def _total(row: Row) -> int:
    """Bytes of the whole, as far as any node knows it."""
    return max((held.manifest.size if held.manifest else held.held_bytes) for held in row[1].values())


def _table(rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("MODEL", "REVISION", "SIZE", "ON"):
        table.add_column(heading)
    for row in rows:
        first, nodes = row
        total = _total(row)
        on = ", ".join(_share(node, held, total) for node, held in nodes.items())
        revision = " ".join((first.commit[:7], *first.revisions)).strip()
        table.add_row(first.name, revision or "–", size_text(total), on)
    return table


def _share(node: str, held: Held, total: int) -> str:
    """`spark1`, or `spark2 62 %` where something is missing."""
    if held.complete:
        return node
    return f"{node} {100 * held.held_bytes / total if total else 0:.0f} %"


def _as_json(row: Row) -> dict[str, Any]:
    first, nodes = row
    return {
        "model": first.name,
        "kind": first.kind,
        "commit": first.commit,
        "revisions": list(first.revisions),
        "bytes": _total(row),
        "nodes": {
            node: {"complete": held.complete, "bytes": held.held_bytes, "path": held.path}
            for node, held in nodes.items()
        },
    }


def _room(seen: Mapping[str, Seen]) -> dict[str, dict[str, int]]:
    return {node: {"free_bytes": found.free_bytes} for node, found in seen.items()}


def _summary(done: Staged) -> str:
    commit = f" at {done.commit[:7]}" if done.commit else ""
    moved = f"{size_text(done.moved_bytes)} moved" if done.moved_bytes else "nothing had to move"
    return f"{done.wanted.name}{commit} is on {', '.join(done.paths)}; {moved}."


def _counted(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def size_text(size: float) -> str:
    """`4.1 GB`: decimal, as disks and downloads are counted."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def progress_text(progress: Progress) -> str:
    """`spark1 → spark2: 62 %, 31.2 of 50.3 GB, 1.1 GB/s, 17 s left`."""
    where = f"{progress.source} → {progress.node}" if progress.source else progress.node
    if progress.text:
        return f"{where}: {progress.text}"
    share = 100 * progress.done_bytes / progress.total_bytes if progress.total_bytes else 100.0
    parts = [f"{share:.0f} %", f"{size_text(progress.done_bytes)} of {size_text(progress.total_bytes)}"]
    if progress.bytes_per_s:
        parts.append(f"{size_text(progress.bytes_per_s)}/s")
    if progress.eta_s:
        parts.append(f"{progress.eta_s:.0f} s left")
    doing = {"hub": "from the Hub ", "checking": "checking ", "lan": "over the LAN "}.get(progress.phase, "")
    return f"{where}: {doing}{', '.join(parts)}"


class _Shown:
    """Shows progress: sentences stay, bytes pass. All nodes that receive share one line."""

    def __init__(self, quiet: bool) -> None:
        self._line: Line | None = None if quiet else Line()
        self._last: dict[str, str] = {}

    def progress(self, progress: Progress) -> None:
        """Take one piece of progress."""
        if self._line is None or progress.phase == "done":
            return
        if progress.phase in ("note", "waiting"):
            console.print(progress_text(progress))
            return
        self._last[progress.node] = progress_text(progress)
        moving = progress.total_bytes > progress.done_bytes
        self._line.passing(" · ".join(self._last.values()))
        if not moving:
            self._last.pop(progress.node)

    def done(self) -> None:
        """Take the line away."""
        if self._line is not None:
            self._line.done()
