"""Desired state of deployments, and the standing of their groups: the policy decides from both, and the store keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from sparkfleet.group.group_name import GroupKey
from sparkfleet.planner.report.carry_over import Member
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.remote_code import code_problems
from sparkfleet.values import Value

Generation = tuple[str, int]
"""A deployment's name and one of its generations."""


class Desired(Value):
    """Desired state of a deployment: the request and its plan."""

    spec: Deployment
    plan: DeploymentPlan
    generation: int
    who: str
    since: float
    members: tuple[Member, ...] = ()
    """Name of each group of the plan: that of an earlier generation if its engine goes on. Empty: all are of this one."""

    @property
    def name(self) -> str:
        """The public model name."""
        return self.spec.name

    @cached_property
    def groups(self) -> tuple[GroupKey, ...]:
        """Key of each group, in the order of the plan."""
        own = tuple((self.generation, index) for index in range(len(self.plan.groups)))
        return tuple((self.name, *member) for member in self.members or own)

    @cached_property
    def code_problems(self) -> tuple[str, ...]:
        """Fields that let code of a checkpoint run without a commit, in words: stored by an older release."""
        return tuple(problem.text for problem in code_problems(self.spec))

    @cached_property
    def spec_json(self) -> str:
        """The request as JSON."""
        return self.spec.model_dump_json()

    def is_new(self, group: GroupKey) -> bool:
        """True if this generation started the group."""
        return group[:2] == (self.name, self.generation)

    def plan_of(self, group: GroupKey) -> GroupPlan:
        """The plan of one of its groups."""
        return self.plan.groups[self.groups.index(group)]

    def planned(self) -> Iterator[tuple[GroupKey, GroupPlan]]:
        """Key and plan of each group, in the order of the plan."""
        return zip(self.groups, self.plan.groups, strict=True)


class Standing(Value):
    """Rung of a group on its ladder."""

    rung: int = 0
    tries: int = 0
    """Failed starts of this rung since it was last ready."""
    given_up: bool = False
    """True: it does not start again until its deployment is applied again."""
    restarts: int = 0
    """Failed starts in a row, since this rung was taken or it was last ready."""
    falls: tuple[float, ...] = ()
    """Times at which it failed while it was ready, as far as they still count, Unix seconds."""
    starved: tuple[float, ...] = ()
    """Those of its falls at this rung that were caused by memory, as far as they still count, Unix seconds."""
    refused: int = 0
    """Times it was given up because memory was not free, before it took any, since it was last ready; 0 if it was given up
    for another reason."""
    passed: tuple[str, ...] = ()
    """Reason for leaving each rung above this one, in order; if it is given up, also the reason for this one."""
    vacated: tuple[int, ...] = ()
    """Rungs above this one that it left because a node was gone: they have not failed, and are for when another one goes."""
    bound: str = ""
    """Reason for starting it on no nodes but those of its first rung until it is ready, in words; "": it may leave them."""
