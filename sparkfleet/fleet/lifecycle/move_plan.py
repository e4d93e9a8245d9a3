"""The plan of a move of the head, and the means to replace one that is lost."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.state.store_copies import StoreCopy


class CheckedCopy(NamedTuple):
    """The copy of the store that a node keeps, checked there."""

    node: str
    path: str
    copy: StoreCopy


class LostHead(NamedTuple):
    """The means to replace a head that is lost."""

    kept: CheckedCopy | None
    """None if the new head has its store already: only the rest is to be done."""
    running: tuple[Generation, ...]
    """Generations that run on the nodes that are reached."""
    absent: tuple[str, ...]
    """Nodes that are not reached, or whose disk is new: the old head is one."""


class MovePlan(NamedTuple):
    """A move of the head that is possible."""

    old: str
    new: str
    live: bool
    """True if the fleet is up."""
    store: str
    """Path for the copy of the store on the new head."""
    settled: bool
    """True if an earlier command was interrupted after the new head took over: only the rest is done."""
    host: str
    """Address of the gateway on the new head."""
    lost: LostHead | None = None
    """Set if the old head is lost."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Nodes on which nothing is done."""
        return self.lost.absent if self.lost is not None else ()
