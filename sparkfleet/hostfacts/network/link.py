"""Links between nodes: the pair, the kind of link and its speed."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from sparkfleet.values import Value

LinkKind = Literal["roce", "tcp"]


class LinkProvenance(StrEnum):
    """Provenance of a link's numbers: read on the nodes, or typical of such a link."""

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
        """Properties of a link that a group over it depends on."""
        return (self.kind, self.latency_us, self.gb_per_s)
