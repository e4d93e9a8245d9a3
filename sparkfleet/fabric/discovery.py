"""Cables found between nodes, with their rails, and rejected ports with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from sparkfleet.fabric.port_scan import Method
from sparkfleet.hostfacts.network.netdev import Netdev
from sparkfleet.values import Value

Kind = Literal["none", "direct", "ring", "switch", "mixed"]


class RejectedPort(Value):
    """A port that is not used as a rail, with the reason."""

    node: str
    netdev: str
    what: str
    do: str = ""

    def __str__(self) -> str:
        reason = f"{self.netdev} of {self.node} {self.what}" if self.netdev else f"{self.node} {self.what}"
        return f"{reason} {self.do}".strip()


def rejection_lines(findings: Iterable[RejectedPort]) -> list[str]:
    """A sentence for each reason: nodes whose ports of one name are rejected for the same one share it."""
    alike: dict[tuple[str, str, str], RejectedPort] = {}
    for one in findings:
        key = (one.netdev or one.node, one.what, one.do)
        first = alike.get(key)
        nodes = f"{first.node}, {one.node}" if first else one.node
        alike[key] = one.model_copy(update={"node": nodes})
    return [str(one) for one in alike.values()]


class FoundEnd(Value):
    """One end of a rail."""

    node: str
    netdev: Netdev
    rdma: str | None


class FoundRail(Value):
    """One rail: both ends, or the one at a switch, and the methods that found it."""

    ends: tuple[FoundEnd, ...]
    methods: tuple[Method, ...]


class FoundLink(Value):
    """One cable with the rails on which a neighbour answered."""

    nodes: tuple[str, ...]
    switch: str | None = None
    rails: tuple[FoundRail, ...]


class DiscoveredLinks(Value):
    """All cables between the nodes, and the rejected ports."""

    links: tuple[FoundLink, ...]
    findings: tuple[RejectedPort, ...]

    @property
    def kind(self) -> Kind:
        """Kind of the whole topology."""
        if not self.links:
            return "none"
        if all(link.switch for link in self.links):
            return "switch"
        pairs = {frozenset(link.nodes) for link in self.links}
        if any(link.switch for link in self.links):
            return "mixed"
        return "direct" if len(pairs) == 1 else "ring" if _is_ring(pairs) else "mixed"


def _is_ring(pairs: set[frozenset[str]]) -> bool:
    degree: dict[str, int] = defaultdict(int)
    for pair in pairs:
        for node in pair:
            degree[node] += 1
    return len(pairs) == len(degree) and set(degree.values()) == {2}
