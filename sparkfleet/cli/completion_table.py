"""`python -m sparkfleet.cli.completion_table`: writes completions.json from the verbs, whose modules it loads."""

from __future__ import annotations

import json
import sys
from typing import Any

from sparkfleet.cli.completion import FILE
from sparkfleet.cli.verb_group import load_command
from sparkfleet.cli.verbs import VERBS

KINDS = {
    "HOST": "",
    "NODE": "nodes",
    "NODE|GROUP": "nodes",
    "NAME": "deployments",
    "NAME|GROUP": "deployments",
    "RULE": "rules",
}
"""Kind of name of an argument, by its metavar; another one is a file, or nothing that is known."""


def table() -> dict[str, Any]:
    """Content of the file, from the verbs themselves. Loads all of them."""
    from sparkfleet.knowledge.rules.rules import load_book

    book = load_book()
    return {
        "verbs": {name: _described(name, load_command(name)) for name in VERBS},
        "rules": sorted([*(rule.id for rule in book.rules), *dict(book.not_rules)]),
    }


def _described(name: str, command: Any) -> dict[str, Any]:
    if hasattr(command, "commands"):
        subs = command.commands.items()
        return {"commands": {sub: [_of(name, p) for p in one.params] for sub, one in subs}}
    return {"parameters": [_of(name, p) for p in command.params]}


def _of(verb: str, parameter: Any) -> dict[str, Any]:
    is_option = parameter.param_type_name == "option"
    return {
        "name": parameter.name,
        "opts": [*parameter.opts, *parameter.secondary_opts] if is_option else [],
        "help": (parameter.help or "").partition(". ")[0].removesuffix(".") if is_option else "",
        "flag": bool(getattr(parameter, "is_flag", False)),
        "many": bool(parameter.multiple or parameter.nargs == -1),
        "kind": "" if is_option else _kind(verb, parameter),
    }


def _kind(verb: str, parameter: Any) -> str:
    if verb == "keys":
        return "keys"
    if verb == "help":
        return "verbs"
    return KINDS.get(parameter.metavar or "", "")


def text() -> str:
    """The file's text."""
    found = table()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in found["verbs"].items())
    rules = ",\n".join(f"  {json.dumps(rule)}" for rule in found["rules"])
    return f'{{"verbs": {{\n{lines}\n}},\n"rules": [\n{rules}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(text())
    sys.stdout.write(f"{FILE.name} was written.\n")
