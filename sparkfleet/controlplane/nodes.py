"""Protocol of the controller's access to the nodes of a fleet. `ray/node_actor.py` has the one over Ray."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

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
