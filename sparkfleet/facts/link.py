"""What is true of the links between nodes: who is joined to whom, over what, and how fast that is."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from sparkfleet.values import Value

LinkKind = Literal["roce", "tcp"]


class LinkProvenance(StrEnum):
    """Where a link's numbers come from: read on the nodes, or what such a link reached elsewhere."""

    MEASURED = "measured"
    DEFAULT = "default"


class LinkFacts(Value):
    """One cable: between two nodes, or between a node and a switch."""

    nodes: tuple[str, ...]
    """Two nodes, or the one that is joined to `switch`."""
    switch: str | None = None
    rails: int = 1
    """Rails that can be used: one QSFP cable is two."""
    kind: LinkKind = "roce"
    latency_us: float
    """One small all-reduce between two nodes on an idle link, microseconds."""
    gb_per_s: float
    """Bus bandwidth of a large collective, GB/s (1e9 bytes)."""
    provenance: LinkProvenance = LinkProvenance.DEFAULT

    @property
    def speed(self) -> tuple[LinkKind, float, float]:
        """What a shape over this link depends on."""
        return (self.kind, self.latency_us, self.gb_per_s)
