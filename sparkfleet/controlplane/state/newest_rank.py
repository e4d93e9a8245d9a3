"""Finds the rank whose log is read, among the groups that a deployment has had. Pure."""

from __future__ import annotations

from sparkfleet.errors import ControlError
from sparkfleet.group.group_name import name_of
from sparkfleet.group.report import GroupReport, RankReport


def newest_rank(
    groups: tuple[GroupReport, ...],
    name: str,
    replica: int | None,
    rank: int,
    generation: int | None = None,
) -> RankReport:
    """The rank of this replica, or of the first one with a log, and of this generation, or of its newest one with a log.

    The numbers of replicas that are left after a change of their number need not begin with 0.

    Raises:
        ControlError: there is no such log.
    """
    logged = [(group, one) for group in groups for one in group.ranks if one.log_path]
    found = [
        (group, one)
        for group, one in logged
        if replica in (None, group.replica) and generation in (None, group.generation) and one.rank == rank
    ]
    if not found:
        names = sorted({name_of((name, group.generation, group.replica)) for group, _ in logged})
        raise ControlError(
            f"{name} has no log yet for rank {rank}{_place(name, replica, generation)}.",
            do=f"Groups with a log: {', '.join(names)}. `sparkfleet logs {names[0]}` prints one."
            if names
            else f"`sparkfleet describe {name}` shows its groups and ranks.",
        )
    return min(found, key=lambda pair: (pair[0].replica, -pair[0].generation))[1]


def _place(name: str, replica: int | None, generation: int | None) -> str:
    if replica is None:
        return ""
    return f" of replica {replica}" if generation is None else f" of {name_of((name, generation, replica))}"
