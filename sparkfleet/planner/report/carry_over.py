"""Groups that go on running when a deployment is applied again: those whose engine would get the same command. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan
from sparkfleet.values import Value

Member = tuple[int, int]
"""Generation and index with which a group was first started: its name (`g1/0`) as long as it runs."""

FOLLOWS = ("memory_fraction", "memory_fractions", "mmap", "kv_staging_bytes")
"""Fields that follow from a prediction, or matter at a start only: a better prediction or a quicker start is no reason to
restart a model."""
ALLOWS = "media_domains"
"""Hosts that an engine may fetch from. The gateway checks a deployment's own list first, at once, so an engine with further
hosts may go on (decision 101 of docs/decisions.md)."""


class RunningGroup(Value):
    """A group that runs, or is on its way, at one rung of its ladder."""

    member: Member
    plan: GroupPlan
    rung: int = 0

    @property
    def candidate(self) -> Candidate:
        """The candidate of its rung."""
        return self.plan.rung_at(self.rung).candidate

    @property
    def name(self) -> str:
        """`g1/0`, as `status` shows it."""
        return "g{}/{}".format(*self.member)

    def at_its_rung(self) -> RunningGroup:
        """The same without the other rungs of its ladder, for a status."""
        ladder = (self.plan.rung_at(self.rung),)
        return RunningGroup(member=self.member, plan=self.plan.model_copy(update={"ladder": ladder}))


class CarriedOver(NamedTuple):
    """A plan in which groups that run already keep their names."""

    plan: DeploymentPlan
    kept: tuple[Member | None, ...]
    """For each group of the plan the running one that serves it; None: it has to start."""

    def ended(self, running: Sequence[RunningGroup]) -> tuple[RunningGroup, ...]:
        """Groups of `running` that the plan does not keep."""
        return tuple(one for one in running if one.member not in self.kept)


def carried_over(plan: DeploymentPlan, running: Sequence[RunningGroup]) -> CarriedOver:
    """Matches each group of a plan with a running one whose engine has the same command.

    A kept group keeps the rung that it runs, and takes its lower rungs from the new plan.

    Args:
        plan: the new plan of the deployment.
        running: its groups; of two that match, the first is kept.
    """
    left = list(running)
    groups: list[GroupPlan] = []
    kept: list[Member | None] = []
    for group in plan.groups:
        found = next((one for one in left if same_engine(one.candidate, group.choice.candidate)), None)
        if found is None:
            groups.append(group)
            kept.append(None)
            continue
        left.remove(found)
        at = found.plan.rung_index(found.rung)
        ladder = (*found.plan.ladder[: at + 1], *group.ladder[1:])
        groups.append(group.model_copy(update={"ladder": ladder}))
        kept.append(found.member)
    return CarriedOver(plan.model_copy(update={"groups": tuple(groups)}), tuple(kept))


def shared_port(new: Iterable[Candidate], old: Iterable[Candidate]) -> int | None:
    """A declared port on which a candidate of each listens on the same node; None without one."""
    both = _declared_ports(new) & _declared_ports(old)
    return min((port for _, port in both), default=None)


def _declared_ports(candidates: Iterable[Candidate]) -> set[tuple[str, int]]:
    return {at for one in candidates for at in one.declared_ports}


def same_engine(running: Candidate, planned: Candidate) -> bool:
    """True if what runs serves as what is planned would: the same settings on the same nodes, and no host of media less."""
    if not set(planned.media_domains) <= set(running.media_domains):
        return False
    follows = dict.fromkeys((*FOLLOWS, ALLOWS))
    return running.model_copy(update=follows) == planned.model_copy(update=follows)
