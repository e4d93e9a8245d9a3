"""What the controller, and whoever starts it, is asked: the bodies of requests."""

from __future__ import annotations

from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.inventory import Inventory
from sparkfleet.values import Value


class ApplyRequest(Value):
    """A deployment and the plan that its owner agreed to."""

    spec: Deployment
    plan: DeploymentPlan
    who: str


class KeyRequest(Value):
    """A name for a new key."""

    name: str


class UpRequest(Value):
    """What `boot up` is given on its standard input, as JSON."""

    state_dir: str
    inventory: Inventory
    apply: ApplyRequest | None = None
    """A deployment to ask for at once, so that its engine starts beside Ray."""
