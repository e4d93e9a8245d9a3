"""Views of strange fleets, and the script that opens the page on one."""

from sparkfleet.gateway.page.fleet_view import (
    BandView,
    DeploymentView,
    FleetView,
    GroupView,
    NodeView,
    OnDemandView,
    PlannedView,
)
from sparkfleet.units import GIB

LONG = "x" * 200
HOUR_S = 3600


def node(name, **fields):
    known = {"joined": True, "memory_total": 120 * GIB, "memory_available": 60 * GIB}
    return NodeView(name=name, **(known | fields))


def served(*groups, **fields):
    fields = {"name": "tiny", "state": "ready", "generation": 1, "since": 1.0} | fields
    return DeploymentView(groups=groups, **fields)


def group(**fields):
    return GroupView(**({"name": "tiny/g1/0", "state": "ready", "since": 1.0, "node": "a"} | fields))


def asleep(name, node="spark1", gib=80, **use):
    """A deployment on demand that is not loaded."""
    memory = BandView(low=0.9 * gib * GIB, mid=gib * GIB, high=1.1 * gib * GIB, provenance="modelled")
    plan = PlannedView(
        nodes=(node,), shape=f"{node} · TP=1", how="vLLM 0.32 · FP8", model="Qwen/Q", context=32768,
        predicted={"memory_bytes": memory},
    )  # fmt: skip
    return served(
        name=name, state="unloaded", detail="its next request starts it", generation=4,
        on_demand=OnDemandView(planned=(plan,), **use),
    )  # fmt: skip


def loaded(name, node="spark1", state="ready", **use):
    """One that is loaded."""
    one = group(name=f"{name}/g2/0", node=node, state=state, engine="vllm")
    return served(one, name=name, state=state, generation=2, on_demand=OnDemandView(**use))


def answer(at=1000.0, admin=False, stale_s=0.0, **fields):
    """As the gateway answers `/api/fleet`."""
    view = FleetView(at=at, fleet="home", sparkfleet="1", **fields).model_dump(mode="json")
    return view | {"stale_s": stale_s, "reader": None, "admin": admin, "capture_until": None}


OPEN = """
answers["/api/fleet"] = [200, view];
answers["/api/requests"] = [200, { requests: [] }];
await import("./page.mjs");
await settled();
"""
