"""Protocol of the controller's access to the nodes of a fleet. `ray/node_actor.py` has the one over Ray."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple, Protocol

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.runtime.base import RankId


class RanksOf(Container[RankId]):
    """All ranks of some groups, and those of later generations than were known when the groups were listed.

    A sweep takes as long as the engines that it ends, and its caller gives up before: meanwhile another generation may have
    been applied and started.

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


class CopyContent(NamedTuple):
    """A copy of the store on its way to other nodes."""

    name: str
    """Its file name on the head."""
    content: bytes
    sha256: str
    """Hexadecimal."""


class Nodes(Protocol):
    """The controller's access to the nodes of a fleet."""

    async def look(self) -> tuple[NodeReport, ...]:
        """Current state of every node of the inventory, in its order."""
        ...

    async def sweep(
        self, keep: frozenset[GroupKey], newest: Mapping[str, int], keep_kv: frozenset[str]
    ) -> tuple[str, ...]:
        """Kills the ranks of all other groups on all nodes that answer, removes what they left; returns lines about them.

        Args:
            keep: groups that exist or are desired.
            newest: newest generation of each name; later ones are left alone, because they were applied meanwhile.
            keep_kv: deployments that keep KV on the disk: that of all others is removed.
        """
        ...

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> Mapping[str, str]:
        """Sends a copy of the store to these nodes, each of which keeps it in place of the one before.

        Returns:
            For each of them the reason for which it does not have it, in words; "" if it has.
        """
        ...
