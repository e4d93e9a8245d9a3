"""`sparkfleet prune`: removes models and images that no deployment uses, after showing them."""

from __future__ import annotations

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
from sparkfleet.cli.planning.models import KeepOption, model_table
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.storage.models import kept_lines
from sparkfleet.fleet.storage.prune import Pruned, Surplus, remove_surplus, surplus_of
from sparkfleet.units import gb, plural


def prune(
    keep: KeepOption = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Remove models and images that no deployment uses from the nodes. Shows them before you confirm."""
    return run(_prune(open_session(inventory), frozenset(keep or ()), yes, json))


async def _prune(session: Session, keep: frozenset[str], yes: bool, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        surplus = await surplus_of(session, keep, progress)
    out = errors if json else console
    if surplus.models:
        out.print(model_table(surplus.models))
    for node, images in surplus.images.items():
        for image in images:
            out.print(f"{node}: image {image.digest[:12]}  {gb(image.size)} unpacked", markup=False)
            if image.names:
                names = ", ".join(image.names)
                out.print(
                    f"  its bytes stay: it is also {names}; `{image.tool} rmi` there removes it", markup=False
                )
    if surplus.models or surplus.images:
        confirm(f"Remove {_counted(surplus)} from the nodes?", yes)
    with ProgressLine(quiet=json) as progress:
        removed = await remove_surplus(session, surplus, progress)
    if json:
        print_json({"version": OUTPUT_VERSION, **_as_json(removed)})
    elif not (surplus.models or surplus.images):
        console.print("Nothing to remove: no model of the Hub's caches and no staged image is unused.")
    else:
        _print_removed(removed)
    return Exit.DONE


def _counted(surplus: Surplus) -> str:
    images = {image.digest for some in surplus.images.values() for image in some}
    words = [plural(len(surplus.models), "model")] if surplus.models else []
    if images:
        words.append(plural(len(images), "image"))
    return " and ".join(words)


def _print_removed(removed: Pruned) -> None:
    freed = sum(size for one in removed.models for size in one.freed_bytes.values())
    count = sum(len(one.images) for one in removed.images.values())
    console.print(f"Removed: {gb(freed)} of models, {plural(count, 'image')}.")
    for line in kept_lines(removed.models):
        console.print(line, markup=False)
    for node, one in removed.images.items():
        for reason in one.kept:
            console.print(f"{node}: stays: {reason}", markup=False)


def _as_json(removed: Pruned) -> dict[str, object]:
    images = {node: one.model_dump(mode="json") for node, one in removed.images.items()}
    return {"models": [one._asdict() for one in removed.models], "images": images}
