"""Writes an inventory as a person would: one line per node and per end of a rail, with comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkfleet.errors import SpecError
from sparkfleet.specs.fields import escape
from sparkfleet.specs.inventory import Inventory, Link, Node, RailEnd
from sparkfleet.specs.load import parse_inventory, to_yaml

_PLAIN = re.compile(r"[A-Za-z_~/][A-Za-z0-9_./~-]*|[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{1,2})?")
"""Text that needs no quotes in YAML, except for the words below."""
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "~"})
_WIDE = 130
"""Longest line, columns."""


def write_inventory(inventory: Inventory, *, about: Sequence[str] = (), doubts: Sequence[str] = ()) -> str:
    """An inventory as YAML text that loads to an equal one.

    Args:
        inventory: fields with their default value are left out.
        about: lines of a comment at the top.
        doubts: sentences about links that were left out, as comments beside the links.
    """
    text = "\n".join(_lines(inventory, about, doubts)) + "\n"
    try:
        same = parse_inventory(text) == inventory
    except SpecError:
        same = False
    # The dumper can write every value; the plain form cannot.
    return text if same else to_yaml(inventory)


def _lines(inventory: Inventory, about: Sequence[str], doubts: Sequence[str]) -> Iterator[str]:
    yield from _comment(about)
    given = inventory.model_dump(mode="json", exclude_defaults=True)
    yield f"fleet: {_scalar(inventory.fleet)}"
    yield f"head: {_scalar(inventory.head)}"
    yield "nodes:"
    for name, node in inventory.nodes.items():
        yield from _node(name, node)
    if inventory.links or doubts:
        yield "links:" if inventory.links else "links: []"
        yield from _comment(doubts, indent="  ")
    for link in inventory.links:
        yield from _link(link)
    for name, value in given.items():
        if name not in ("fleet", "head", "nodes", "links"):
            yield f"{name}: {_flow(value)}"


def _node(name: str, node: Node) -> Iterator[str]:
    fields: dict[str, Any] = node.model_dump(mode="json", exclude_defaults=True)
    line = f"  {_scalar(name)}: {_flow(fields)}"
    if len(line) <= _WIDE:
        yield line
        return
    yield f"  {_scalar(name)}:"
    yield from (f"    {key}: {_flow(value)}" for key, value in fields.items())


def _link(link: Link) -> Iterator[str]:
    yield f"  - nodes: {_flow(list(link.nodes))}"
    if link.switch is not None:
        yield f"    switch: {_scalar(link.switch)}"
    yield "    rails:"
    for rail in link.rails:
        ends = [_flow(_end(end)) for end in rail]
        yield "      - [" + ",\n         ".join(ends) + "]"


def _end(end: RailEnd) -> dict[str, Any]:
    return end.model_dump(mode="json", exclude_defaults=True)


def _comment(lines: Sequence[str], indent: str = "") -> Iterator[str]:
    for line in lines:
        yield f"{indent}# {escape(line)}".rstrip()


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Plain if YAML reads it as the same text; else a JSON string, which is a YAML string."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
