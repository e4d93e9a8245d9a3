"""Launches of every group of a deployment, for tests."""

from address_values import cable, inventory, spark
from control_values import deployment, plan

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan

FLEET = inventory({"a": spark(1), "b": spark(2)}, (cable("a", "b", 100),))
"""Two Sparks and their cable."""


def launches_for(inventory, desired, rungs=None):
    """The launch of each group, in the order of the plan, at its rung: by its index, left out: 0."""
    return tuple(
        launch_for(inventory, desired, group, (rungs or {}).get(at, 0))
        for at, group in enumerate(desired.groups)
    )


def desired(*shapes, **fields):
    """A deployment with a group per shape, and these fields of each candidate."""
    rung = plan().groups[0].choice
    groups = tuple(
        GroupPlan(ladder=(rung.model_copy(update={"candidate": candidate}),))
        for shape in shapes
        for candidate in (rung.candidate.model_copy(update={"shape": shape, **fields}),)
    )
    plan_ = DeploymentPlan(name="tiny", objective="interactive", groups=groups)
    return Desired(spec=deployment(), plan=plan_, generation=3, who="me", since=0.0)
