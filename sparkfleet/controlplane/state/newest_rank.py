"""Finds the rank whose log is read, among the groups that a deployment has had. Pure."""

from __future__ import annotations

from sparkfleet.errors import ControlError
from sparkfleet.group.report import GroupReport, RankReport


def newest_rank(
    groups: tuple[GroupReport, ...], name: str, replica: int, rank: int, generation: int | None = None
) -> RankReport:
    """That rank of this generation's group, or of the newest one's with a log. Raises ControlError if there is none."""
    found = [
        (group.generation, one)
        for group in groups
        if group.replica == replica and generation in (None, group.generation)
        for one in group.ranks
        if one.rank == rank and one.log_path
    ]
    if not found:
        raise ControlError(
            f"{name} has no log yet for rank {rank} of replica {replica}.",
            do=f"`sparkfleet describe {name}` shows its groups and ranks.",
        )
    return max(found, key=lambda pair: pair[0])[1]
