"""Protocol of the controller's access to the nodes of a fleet. `ray/node_actor.py` has the one over Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import NamedTuple, Protocol

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.runtime.base import RankId

SWEEP_S = 12.0
"""Time limit of a sweep: Ray's own calls have none. A silent node takes 10 s of it."""


class RanksOf(Container[RankId]):
    """All ranks of some groups, and those of later generations than were known when the groups were listed.

    Args:
        newest: newest generation of each name at that time. A number is never given twice.
    """

    def __init__(self, groups: Iterable[GroupKey], newest: Mapping[str, int]) -> None:
        self._groups = {tuple(one) for one in groups}
        self._newest = dict(newest)

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, RankId):
            return False
        is_later = rank.generation > self._newest.get(rank.deployment, 0)
        return is_later or (rank.deployment, rank.generation, rank.replica) in self._groups


class SweepList(NamedTuple):
    """Groups and files that a sweep leaves alone, as of one moment."""

    keep: frozenset[GroupKey]
    """Groups that exist or are desired."""
    newest: Mapping[str, int]
    """Newest generation of each name; later ones are left alone, because they were applied meanwhile."""
    keep_kv: frozenset[str]
    """Deployments that keep KV on the disk: that of all others is removed."""


class CopyContent(NamedTuple):
    """A copy of the store on its way to other nodes."""

    name: str
    """Its file name on the head."""
    content: bytes
    sha256: str
    """Hexadecimal."""


class Nodes(Protocol):
    """The controller's access to the nodes of a fleet."""

    async def look(self, names: Collection[str] | None = None) -> tuple[NodeReport, ...]:
        """Current state of the nodes of the inventory, in its order: of these, or of all. Waits for a silent one for 5 s."""
        ...

    async def sweep(self, names: Collection[str], listed: Callable[[], SweepList]) -> tuple[str, ...]:
        """Kills the ranks of all other groups on these nodes, as far as they answer, and removes what they left; returns
        lines about them. None waits for another.

        A rank is left alone if its run began after the node was first called, and a call that reaches its node after the
        caller has given up does nothing: a sweep takes as long as the engines that it ends.

        Args:
            listed: returns what is left alone at this moment; called once for each node, after that has answered.
        """
        ...

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> Mapping[str, str]:
        """Sends a copy of the store to these nodes, each of which keeps it in place of the one before.

        Returns:
            For each of them the reason for which it does not have it, in words; "" if it has.
        """
        ...
