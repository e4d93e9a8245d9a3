"""Use of deployments on demand, as a status shows it: who waits for a start, and when a loaded one ends. Pure."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.controlplane.policy.demand.unloading import unused_s
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import OnDemandStatus


def on_demand_uses(
    state: FleetState, now: Now, last_start_s: Callable[[str], float | None]
) -> dict[str, OnDemandStatus]:
    """The use of each deployment on demand, by its name. `last_start_s`: seconds of its last start; None: not known."""
    return {
        name: _use(state, one, now, last_start_s(name))
        for name, one in state.applied.items()
        if one.spec.on_demand
    }


def _use(state: FleetState, desired: Desired, now: Now, start_s: float | None) -> OnDemandStatus:
    demand = state.demand.get(desired.name)
    if demand is None:
        return OnDemandStatus(idle_s=desired.spec.idle, start_s=start_s)
    unused = ends_in = None
    if demand.ready_since is not None and not demand.in_flight and desired.name in state.to_run:
        unused = unused_s(state, desired, now)
        if desired.spec.idle is not None:
            ends_in = max(0.0, desired.spec.idle - unused)
    waiting = demand.waiting_since
    return OnDemandStatus(
        in_flight=demand.in_flight,
        waits_s=None if waiting is None else now.steady - waiting,
        loaded_by=demand.loaded_by,
        idle_s=desired.spec.idle,
        unused_s=unused,
        ends_in_s=ends_in,
        start_s=start_s,
    )
