"""States of a fleet with deployments on demand, as values, for tests of the policy's single rounds."""

from control_values import deployment, plan
from policy_world import application, seen

from sparkfleet.controlplane.policy.state import FleetState, Pending
from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.units import GIB

IDLE = RequestDemand(0, None, 900.0, 100.0, 500.0)
"""Ready, and unused for long."""
BETWEEN_REQUESTS = RequestDemand(0, None, 997.0, 3.0, 500.0)
"""Ready for long, and used by requests so short that none is found in flight."""


def wanted(name, gib, nodes=("this",), on_demand=True, generation=1, lower=(), **fields):
    """A deployment of one group that holds so many GiB on these nodes, or on those of each of its lower rungs."""
    made = plan(name, mid=gib * GIB)
    rung = made.groups[0].choice
    shapes = [rung.candidate.shape.model_copy(update={"nodes": each}) for each in (nodes, *lower)]
    ladder = tuple(
        rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"shape": shape})})
        for shape in shapes
    )
    made = made.model_copy(update={"groups": (made.groups[0].model_copy(update={"ladder": ladder}),)})
    spec = deployment(name).model_copy(update={"on_demand": on_demand, **fields})
    return Desired(spec=spec, plan=made, generation=generation, who="me", since=0.0)


def report(name, phase=GroupPhase.READY, **fields):
    return GroupReport(
        deployment=name, generation=1, replica=0, phase=phase, node="this", since=0.0, **fields
    )


def fleet(*each, free, running=(), apps=(), demand=None, **fields):
    """A state: `free` in GiB, by node or of `this`; those that run have reported it."""
    free = free if isinstance(free, dict) else {"this": free}
    reports = tuple(report(name, started_s=30.0) for name in running)
    given = {
        "desired": {one.name: one for one in each},
        "apps": (*(application((name, 1, 0), "running") for name in running), *apps),
        "reports": reports,
        "fresh": frozenset(one.name for one in reports),
        "nodes": seen(990.0, this="first", that="first"),
        "available": {node: gib * GIB for node, gib in free.items()},
        "pending": Pending(loaded=frozenset(running)),
        "demand": demand or {},
    }
    return FleetState(**{**given, **fields})


def waits(since=950.0):
    return RequestDemand(1, since, 1000.0, 0.0, None)
