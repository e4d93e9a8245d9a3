"""Loading and unloading what is on demand: the command waits, repeats its request, and knows the outcome."""

import pytest
from control_values import plan
from open_client import OpenClient
from statuses import fleet

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.deployments.load import load_deployment, serves, unload_deployment
from sparkfleet.fleet.events import FleetEvent, StepRunning
from sparkfleet.fleet.planning.step_times import last_start_s, load_step_times
from sparkfleet.group.report import GroupPhase, GroupReport, RankReport
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Inventory

PLAN = plan()
STARTING = GroupReport(
    deployment="a",
    generation=1,
    replica=0,
    phase=GroupPhase.STARTING,
    ranks=(RankReport(rank=0, node="n"),),
    node="n",
    since=0.0,
)


def status(state, groups=(), **fields):
    found = DeploymentStatus(
        name="a",
        generation=1,
        state=state,
        detail="",
        who="",
        since=0.0,
        plan=PLAN,
        groups=groups,
        members=((1, 0),),
        **fields,
    )
    return fleet(found)


def event(number, kind, message=""):
    return Event(id=number, at=0.0, deployment="a", generation=1, subject="", kind=kind, message=message)


class Fleet(OpenClient):
    """A session, and the client of its controller, whose deployment has these states in turn, the last for ever."""

    def __init__(self, *states, events=(), loaded=True):
        self.inventory = Inventory.model_validate(
            {"fleet": "of-a-test", "head": "n", "nodes": {"n": {"address": "local"}}}
        )
        self._states = list(states)
        self._events = list(events)
        self._loaded = loaded
        self._rounds = 0
        self.calls = []

    async def fleet(self):
        return self._states[0]

    async def events(self, after, deployment=None, wait_s=0):
        self._rounds += 1
        assert self._rounds < 20, "it waits for ever"
        if len(self._states) > 1:
            del self._states[0]
        found, self._events = [one for one in self._events if one.id > after], []
        return found

    async def load(self, name, who):
        self.calls.append("load")

    async def unload(self, name, who):
        self.calls.append("unload")
        return self._loaded


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


async def test_a_load_is_repeated_until_it_starts_and_its_start_is_timed_without_the_wait_for_memory():
    waits, starts = status("unloaded"), status("starting", (STARTING,))
    controller = Fleet(waits, waits, starts, status("ready"), events=[event(1000, "load", "loaded by me")])
    seen = []
    found, was_ready = await load_deployment(controller, "a", seen.append)
    assert (found.state, was_ready, controller.calls) == ("ready", False, ["load"] * 3)
    steps = [one.step.value for one in seen if isinstance(one, StepRunning)]
    assert steps == ["waiting", "waiting", "starting the engine"]
    assert [one.event.kind for one in seen if isinstance(one, FleetEvent)] == ["load"]
    times = load_step_times(FleetPaths.default("of-a-test").step_times)
    assert [list(steps) for steps in times.values()] == [["starting the engine"]]
    assert last_start_s(times, PLAN) is None or last_start_s(times, PLAN) < 5


async def test_one_that_is_loaded_counts_as_used_now():
    controller = Fleet(status("ready"))
    _, was_ready = await load_deployment(controller, "a", lambda _: None)
    assert (was_ready, controller.calls) == (True, ["load"])


async def test_one_that_does_not_start_is_a_failure():
    controller = Fleet(status("unloaded"), status("starting"), status("failed"))
    found, _ = await load_deployment(controller, "a", lambda _: None)
    assert found.state == "failed"


async def test_a_load_ends_when_the_generation_before_serves():
    older = (STARTING.model_copy(update={"phase": GroupPhase.READY}),)
    served = status("failed", older, instead=1)
    found, was_ready = await load_deployment(
        Fleet(status("unloaded", instead=1), status("starting", instead=1), served), "a", lambda _: None
    )
    assert (found.state, was_ready, serves(found)) == ("failed", False, True)
    assert await load_deployment(Fleet(served), "a", lambda _: None) == (found, True)
    assert not serves(status("failed").deployments[0])


async def test_an_unload_of_one_that_has_failed_ends():
    """It waited for ever: nothing that failed is unloaded."""
    controller = Fleet(status("failed", (STARTING,)), status("failed"))
    assert await unload_deployment(controller, "a", lambda _: None) == (True, False)


async def test_an_unload_waits_until_the_engines_have_ended():
    ends = status("unloaded", (STARTING,))
    controller = Fleet(status("ready"), ends, ends, status("unloaded"), events=[event(1000, "unload")])
    assert await unload_deployment(controller, "a", lambda _: None) == (True, False)
    assert await unload_deployment(Fleet(status("unloaded"), loaded=False), "a", lambda _: None) == (
        False,
        False,
    )


async def test_one_that_a_request_waits_for_starts_again():
    controller = Fleet(status("ready"), status("unloaded", (STARTING,)), events=[event(1000, "load")])
    assert await unload_deployment(controller, "a", lambda _: None) == (True, True)
