"""Desired state of deployments, and the standing of their groups: the policy decides from both, and the store keeps them."""

from __future__ import annotations

from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

GroupKey = tuple[str, int, int]
"""A group: its deployment's name, the generation, and which of its groups."""


class Desired(Value):
    """Desired state of a deployment: the request and its plan."""

    spec: Deployment
    plan: DeploymentPlan
    generation: int
    who: str
    since: float

    @property
    def name(self) -> str:
        """The public model name."""
        return self.spec.name


class Standing(Value):
    """Rung of a group on its ladder."""

    rung: int = 0
    tries: int = 0
    """Starts of this rung that have failed since it was ready last."""
    given_up: bool = False
    """It is not started again, until its deployment is applied again."""
    restarts: int = 0
    """Starts in a row that have failed, since this rung was taken or it was ready last."""
    falls: tuple[float, ...] = ()
    """When it was ready and has failed, as far as that still counts, Unix seconds."""
    starved: tuple[float, ...] = ()
    """Those of its falls at this rung for which memory ran out, as far as they still count, Unix seconds."""
    passed: tuple[str, ...] = ()
    """Why each rung above this one was left, in order; of what is given up also why this one was."""
