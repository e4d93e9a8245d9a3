"""Completes verbs, options and names in a shell, without the modules of the verbs: they take longer to load than TAB may.

`completions.json` has the options of every verb and the ids of the rules. `completion_table.py` writes it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

FILE = Path(__file__).with_name("completions.json")

INVENTORY = "inventory.yaml"


def stub(name: str) -> Any | None:
    """A command, or a group, with a verb's parameters, that does nothing. None for a verb that is not in the file."""
    found = json.loads(FILE.read_bytes())["verbs"].get(name)
    if found is None:
        return None
    holder = typer.Typer(add_completion=False, callback=lambda: None)
    if "commands" in found:
        group = typer.Typer(callback=lambda: None, add_completion=False)
        for sub, parameters in found["commands"].items():
            group.command(sub)(_function(parameters))
        holder.add_typer(group, name=name)
    else:
        holder.command(name)(_function(found["parameters"]))
    return typer.main.get_group(holder).commands[name]


def _function(parameters: list[dict[str, Any]]) -> Callable[..., None]:
    def verb(**_: object) -> None:
        return

    made = [_parameter(one) for one in parameters]
    verb.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    verb.__annotations__ = {one.name: one.annotation for one in made}
    return verb


def _parameter(one: dict[str, Any]) -> inspect.Parameter:
    if one["opts"]:
        info = typer.Option(*one["opts"], help=one["help"], autocompletion=_completer(one["kind"]))
    else:
        info = typer.Argument(autocompletion=_completer(one["kind"]))
    if one["many"]:
        type_: Any = list[str] | None
    else:
        type_ = bool if one["flag"] else str | None
    return inspect.Parameter(
        one["name"],
        inspect.Parameter.KEYWORD_ONLY,
        default=False if one["flag"] else None,
        annotation=Annotated[type_, info],
    )


def _completer(kind: str) -> Callable[..., list[str]] | None:
    if not kind:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given = ctx.params.get("inventory") or os.environ.get("SPARKFLEET_INVENTORY") or INVENTORY
        used = {name for value in ctx.params.values() if isinstance(value, list | tuple) for name in value}
        return [one for one in _names(kind, Path(given)) if one.startswith(incomplete) and one not in used]

    return complete


def _names(kind: str, inventory: Path) -> list[str]:
    if kind == "rules":
        return [str(one) for one in json.loads(FILE.read_bytes())["rules"]]
    if kind == "verbs":
        return [*json.loads(FILE.read_bytes())["verbs"]]
    from sparkfleet.fleet.known_names import known_names

    return known_names(kind, inventory)
