"""`sparkfleet history`: lists the generations of a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    NameArgument,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, print_json, print_line
from sparkfleet.fleet.deployments.history import GenerationEntry, history_of
from sparkfleet.fleet.session import Session
from sparkfleet.planner.report.explain.change import field_words
from sparkfleet.units import moment_words


def history(
    name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """List the generations of a deployment: time, author, and what changed."""
    return run(_history(name, open_session(inventory), json))


async def _history(name: str, session: Session, json: bool) -> int:
    found = await history_of(session, name)
    entries = found.entries()
    if json:
        listed = [one.model_dump(mode="json") for one in entries]
        print_json({"version": OUTPUT_VERSION, "name": name, "generations": listed})
        return Exit.DONE
    for line in history_lines(name, entries):
        print_line(line)
    return Exit.DONE


def history_lines(name: str, entries: Sequence[GenerationEntry]) -> list[str]:
    """Lines of a history, the newest generation first."""
    lines = [f"{name}: {len(entries)} generation{'' if len(entries) == 1 else 's'}"]
    before = (None, *entries)
    for one, older in reversed(list(zip(entries, before, strict=False))):
        when = moment_words(one.since)
        now = "   current" if one.current else ""
        lines.append(f"  {one.generation:>3}   {when}   {one.who}   groups {', '.join(one.groups)}{now}")
        lines += [f"        {field_words(field)}" for field in one.fields]
        if older is not None and not one.fields:
            again = "" if one.groups == older.groups else ": its engines were started again"
            lines.append(f"        as generation {older.generation}{again}")
    if not any(one.current for one in entries):
        lines.append(f"{name} was deleted; `sparkfleet rollback {name}` brings the newest generation back.")
    elif len(entries) > 1:
        lines.append(f"`sparkfleet rollback {name} GENERATION` goes back to one of them.")
    return lines
