"""Compares values that have to be equal on all nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot


def values(fleet: FleetReadings, read: Callable[[NodeSnapshot], str | None]) -> Mapping[str, list[str]]:
    """Values and the nodes that reported them. Nodes without a value are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in fleet.answered:
        if value := read(node):
            found[value].append(node.name)
    return found


def differing(found: Mapping[str, list[str]]) -> str:
    """`580.142 on spark1, 590.48 on spark2 and spark3`; "" if they agree."""
    if len(found) < 2:
        return ""
    return ", ".join(f"{value} on {_names(nodes)}" for value, nodes in sorted(found.items()))


def shared(found: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Values that nodes have in common: the value, and `spark1 and spark2`."""
    return [(value, _names(nodes)) for value, nodes in found.items() if len(nodes) > 1]


def _names(nodes: list[str]) -> str:
    """`spark1, spark2 and spark3`."""
    return " and ".join((", ".join(nodes[:-1]), nodes[-1])) if len(nodes) > 1 else nodes[0]
