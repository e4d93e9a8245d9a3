"""The last generation that served starts again if the newer one, for which it had to end, does not start."""

from dataclasses import replace

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.policy.actions import EndGroup, ForgetGroup, GiveUp, StartGroup
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.fallback import BREAKER_S
from sparkfleet.controlplane.policy.state import FleetState, Now, SeenNodes
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.report import GroupPhase, GroupReport

NOW = Now.at(1000.0)
OLD, NEW = ("m", 1, 0), ("m", 2, 0)
UP = SeenNodes(here="this", boots={"this": "b"}, looked_at=999.0)
GIVEN_UP = Standing(given_up=True)


def generation(number, rungs=1, groups=1):
    made = plan("m", high=4.0, rungs=rungs, groups=groups)
    return Desired(spec=deployment("m"), plan=made, generation=number, who="me", since=0.0)


def app(group, status):
    return App(deployment=group[0], generation=group[1], replica=group[2], status=status)


def state(*apps, standings=None, served=True, **fields):
    given = {
        "nodes": UP,
        "available": {"this": 5},
        "last_served": {"m": generation(1, rungs=2)} if served else {},
        "desired": {"m": generation(2)},
    }
    return FleetState(apps=apps, standings={NEW: GIVEN_UP, **(standings or {})}, **{**given, **fields})


def started(found):
    return [one for one in decide(found, NOW) if isinstance(one, StartGroup)]


@pytest.mark.parametrize("apps", [(), (app(NEW, "failed"),)])
def test_it_starts_again_if_the_newer_one_is_given_up(apps):
    (found,) = started(state(*apps))
    assert (found.group, found.nodes) == (OLD, ("this",))
    assert found.reason == "generation 2 did not start, and generation 1 served before it"
    assert not is_at_rest(state(*apps))


@pytest.mark.parametrize(
    "there",
    [
        state(app(NEW, "retiring")),
        state(app(OLD, "starting")),
        state(app(NEW, "running")),
        state(standings={OLD: GIVEN_UP}),
        state(served=False),
        state(standings={NEW: Standing()}),
        state(paused=True),
    ],
    ids=[
        "its end is awaited",
        "it starts",
        "the newer one serves",
        "it failed",
        "none",
        "not given up",
        "down",
    ],
)
def test_it_does_not_start_if(there):
    assert OLD not in [one.group for one in started(there)]


@pytest.mark.parametrize(
    "fields",
    [
        {"available": {"this": 3}},
        {"available": {}},
        {"drained": frozenset({"this"})},
        {"unusable": {"this": "its state directory cannot be written."}},
        {"nodes": SeenNodes(here="other", boots={"other": "b"}, looked_at=999.0)},
    ],
)
def test_it_waits_for_its_node_and_its_memory(fields):
    waits = state(**fields)
    assert started(waits) == []
    assert not is_at_rest(waits)


def test_one_group_of_the_newer_generation_that_is_not_given_up_keeps_it_away():
    assert started(state(app(("m", 2, 1), "running"), desired={"m": generation(2, groups=2)})) == []


def test_the_newer_one_goes_first_if_it_was_only_refused_memory_that_is_free_now():
    found = decide(state(standings={NEW: Standing(given_up=True, refused=1)}), NOW)
    assert [one.group for one in found if isinstance(one, StartGroup)] == []
    assert NEW in [one.group for one in found if not isinstance(one, ForgetGroup)]


def test_of_two_deployments_the_first_gets_the_memory():
    served = {name: generation(1).model_copy(update={"spec": deployment(name)}) for name in "ab"}
    newer = {name: generation(2).model_copy(update={"spec": deployment(name)}) for name in "ab"}
    both = FleetState(
        desired=newer,
        last_served=served,
        standings={(name, 2, 0): GIVEN_UP for name in "ab"},
        nodes=UP,
        available={"this": 7},
    )
    assert [one.group for one in started(both)] == [("a", 1, 0)]


def forgotten(found):
    return [one.group for one in decide(found, NOW) if isinstance(one, ForgetGroup)]


LOWER = Standing(rung=1)


def serving(since=0.0, phase=GroupPhase.READY, standing=LOWER, **fields):
    """The newer one serves, as it reported; the older one has ended."""
    report = GroupReport(deployment="m", generation=2, replica=0, phase=phase, node="this", since=since)
    return state(
        app(NEW, "running"),
        standings={NEW: Standing(), OLD: standing},
        served=False,
        **{"reports": (report,), **fields},
    )


def test_its_rung_is_kept_until_the_newer_one_has_served_for_long():
    """At the first rung it may take its node down, for which it had left that."""
    at = {OLD: LOWER}
    assert forgotten(state(app(NEW, "starting"), standings={NEW: Standing(), **at})) == []
    (found,) = started(state(standings=at))
    assert found.group == OLD
    assert forgotten(serving(NOW.unix - BREAKER_S)) == [OLD]


@pytest.mark.parametrize(
    "serves",
    [
        serving(NOW.unix),
        serving(NOW.unix - BREAKER_S + 1.0),
        serving(NOW.unix + 5.0),
        serving(phase=GroupPhase.FAILED),
        serving(reports=()),
    ],
    ids=[
        "for a moment",
        "for less",
        "on a node whose clock is ahead",
        "no more",
        "as Serve alone knows",
    ],
)
def test_what_is_known_of_it_is_kept_if_the_newer_one_serves(serves):
    assert forgotten(serves) == []
    assert not is_at_rest(serves)


def test_a_clock_that_was_set_back_a_day_keeps_nothing():
    assert forgotten(serving(NOW.unix + 86_400.0)) == [OLD]


def test_what_is_given_up_is_not_brought_back_because_the_newer_one_came_up_and_failed():
    """Each start of it may have taken its node down."""
    serves = serving(NOW.unix, standing=Standing(tries=2, given_up=True))
    later = after(serves, decide(serves, NOW), NOW)
    down = replace(
        later,
        apps=(),
        standings={**later.standings, NEW: GIVEN_UP},
        last_served={"m": generation(1, rungs=2)},
    )
    assert started(down) == []


def test_if_it_fails_it_is_given_up_and_not_brought_back_again():
    found = decide(state(app(NEW, "failed"), app(OLD, "failed")), NOW)
    assert [type(one) for one in found if getattr(one, "group", None) == OLD] == [GiveUp, EndGroup]
    assert all("generation 2 did not start either" in one.reason for one in found)
    assert started(state(app(NEW, "failed"), standings={OLD: GIVEN_UP})) == []
