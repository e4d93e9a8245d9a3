"""Views of strange fleets, and the script that opens the page on one."""

from sparkfleet.gateway.page.fleet_view import DeploymentView, FleetView, GroupView, NodeView
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
