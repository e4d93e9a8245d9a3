"""Desired state of deployments, and the standing of their groups: the policy decides from both, and the store keeps them."""

from __future__ import annotations

from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

GroupKey = tuple[str, int, int]
"""A group: its deployment's name, the generation, and its index in the deployment."""


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
    """Failed starts of this rung since it was last ready."""
    given_up: bool = False
    """True: it does not start again until its deployment is applied again."""
    restarts: int = 0
    """Failed starts in a row, since this rung was taken or it was last ready."""
    falls: tuple[float, ...] = ()
    """Times at which it failed while it was ready, as far as they still count, Unix seconds."""
    starved: tuple[float, ...] = ()
    """Those of its falls at this rung that were caused by memory, as far as they still count, Unix seconds."""
    passed: tuple[str, ...] = ()
    """Reason for leaving each rung above this one, in order; if it is given up also the reason for this one."""
