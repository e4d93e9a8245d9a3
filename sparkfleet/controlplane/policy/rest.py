"""A fleet at rest: as long as nothing changes, the policy has nothing to do, however much time passes. Pure."""

from __future__ import annotations

from sparkfleet.controlplane.policy.memory_admission import depends_on_memory
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.state import FleetState


def is_at_rest(state: FleetState) -> bool:
    """True if no rule of the policy that has no action now gets one by the passing of time alone.

    Time counts for nodes that are away, for failures that wait for an answer or were answered, for starts that have not
    ended, and for generations that wait for memory and groups that were refused it: memory is not part of what a round
    compares.
    """
    pending = state.pending
    return not (
        state.nodes.looked_at is None
        or state.nodes.away_since
        or state.starts
        or pending.answered
        or pending.failed_at
        or depends_on_memory(state)
        or refused(state)
    )
