"""Nodes and groups that were drained."""

from __future__ import annotations

from sparkfleet.group.group_name import NamedGroupValue
from sparkfleet.values import Value


class DrainedNode(Value):
    """A node on which nothing is to be started."""

    node: str
    who: str
    since: float
    """Unix seconds."""


class DrainedGroup(NamedGroupValue):
    """A group that gets no new requests."""

    who: str
    since: float
    """Unix seconds."""
