"""Launches of every group of a deployment, for tests."""

from sparkfleet.controlplane.state.launches import launch_for


def launches_for(inventory, desired, rungs=None):
    """The launch of each group, in the order of the plan, at its rung: by its index, left out: 0."""
    return tuple(
        launch_for(inventory, desired, group, (rungs or {}).get(at, 0))
        for at, group in enumerate(desired.groups)
    )
