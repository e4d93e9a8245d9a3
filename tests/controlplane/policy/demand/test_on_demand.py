"""Deployments on demand: loaded for a request, unloaded without one or for another, and nothing ended for nothing."""

from dataclasses import replace

from demand_world import DemandWorld, on_demand, unloads, wanted
from policy_world import PolicyWorld

from sparkfleet.controlplane.policy.actions import (
    LoadDeployment,
    RetireGroup,
    StartGroup,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.decide import is_at_rest
from sparkfleet.controlplane.policy.demand.claim_room import LEAST_SERVED_S, OTHERS_START, UNUSED_S
from sparkfleet.controlplane.policy.demand.on_demand import changes_by_time
from sparkfleet.controlplane.state.desired import Standing

NO_ROOM = ", which is more than is free, and nothing that could end for it holds as much"


def test_it_starts_with_the_first_request_and_not_before():
    world = DemandWorld(on_demand("a"))
    assert world.rounds(5) == []
    world.request("a")
    (load, start) = [one for one in world.round() if isinstance(one, LoadDeployment | StartGroup)]
    assert (load.deployment, load.reason) == ("a", "a request waits for it")
    assert start.group == ("a", 1, 0)
    world.round()
    assert world.running == {"a"}


def test_without_a_limit_it_stays_and_with_one_it_ends_when_nobody_has_used_it_for_so_long():
    for idle, ends in ((None, []), (30, [("a", "no request for 30 s")])):
        world = DemandWorld(on_demand("a", idle=idle))
        world.request("a")
        world.rounds(40)
        assert world.running == {"a"}, "a request is in flight"
        world.request("a", 0)
        assert unloads(world.rounds(29)) == []
        assert unloads(world.rounds(5)) == ends
        assert world.running == (set() if ends else {"a"})


def test_a_start_whose_client_has_left_ends_and_then_counts_as_unused():
    world = DemandWorld(on_demand("a", idle=30))
    world.request("a")
    world.round()
    world.request("a", 0)
    assert unloads(world.rounds(25)) == []
    assert world.running == {"a"}, "its next request may come any moment"
    assert unloads(world.rounds(10)) == [("a", "no request for 30 s")]


def test_two_that_do_not_fit_at_once_take_turns_and_one_that_is_unused_ends_soon():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("a")
    world.rounds(3)
    world.request("a", 0)
    world.request("b")
    assert unloads(world.rounds(UNUSED_S - 2)) == [], "the next turn of an agent may come"
    actions = world.rounds(5)
    assert unloads(actions) == [("a", "it made room for b")]
    assert [one.reason for one in actions if isinstance(one, RetireGroup)] == ["it made room for b"]
    world.rounds(3)
    assert world.running == {"b"}


def test_one_that_is_used_serves_for_a_while_before_it_ends_for_another():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("a")
    world.rounds(3)
    world.request("b")
    actions = world.rounds(LEAST_SERVED_S - 5)
    assert unloads(actions) == []
    (wait,) = [one for one in actions if isinstance(one, WaitForMemory)]
    assert (wait.deployment, wait.reason) == ("b", "it starts once a ends, which has its memory")
    assert unloads(world.rounds(10)) == [("a", "it made room for b")]
    world.rounds(3)
    assert world.running == {"b"}, "and a waits for its turn now"
    assert unloads(world.rounds(LEAST_SERVED_S - 10)) == []
    assert unloads(world.rounds(15)) == [("b", "it made room for a")]


def test_of_two_that_are_requested_at_once_the_second_waits_for_the_first_and_not_for_room_that_never_comes():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("a")
    world.request("b")
    reasons = [one.reason for one in world.rounds(5) if isinstance(one, WaitForMemory)]
    assert reasons[0] == OTHERS_START
    assert not any(NO_ROOM in reason for reason in reasons)


def test_short_requests_with_pauses_do_not_keep_another_out():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("a")
    world.rounds(3)
    world.request("b")
    actions = []
    for _ in range(int(LEAST_SERVED_S)):
        world.request("a", 1)
        world.request("a", 0)  # between two looks
        actions += world.round()
    assert unloads(actions) == [("a", "it made room for b")]


def test_one_that_was_given_up_holds_nothing_and_is_in_nobodys_way():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    given_up = {("a", 1, 0): Standing(given_up=True)}
    world.state = replace(world.state, standings=given_up)
    world.request("a")
    world.rounds(3)
    assert world.running == set()
    world.request("b")
    world.rounds(3)
    assert world.running == {"b"}


def test_what_fits_beside_it_is_loaded_beside_it():
    world = DemandWorld(on_demand("a", 60), on_demand("b", 30))
    world.request("a")
    world.rounds(3)
    world.request("b")
    assert unloads(world.rounds(100)) == []
    assert world.running == {"a", "b"}


def test_the_one_that_was_used_longest_ago_ends_first_and_no_more_than_are_needed():
    world = DemandWorld(on_demand("a", 40), on_demand("b", 40), on_demand("c", 50))
    for name in ("b", "a"):
        world.request(name)
        world.rounds(3)
        world.request(name, 0)
    world.request("c")
    assert unloads(world.rounds(UNUSED_S + 5)) == [("b", "it made room for c")]
    world.rounds(3)
    assert world.running == {"a", "c"}


def test_of_two_that_wait_for_one_place_the_first_is_loaded_alone():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("b")
    world.round()
    world.request("a")
    world.rounds(20)
    assert world.running == {"b"}
    world.request("b", 0)
    world.rounds(UNUSED_S + 5)
    assert world.running == {"a"}


def test_nothing_is_ended_for_one_that_would_not_fit_without_it_either():
    world = DemandWorld(wanted("always", 50), on_demand("a", 40), on_demand("b", 70))
    world.rounds(2)
    world.request("a")
    world.rounds(3)
    world.request("a", 0)
    world.request("b")
    actions = world.rounds(UNUSED_S + 20)
    assert unloads(actions) == []
    assert world.running == {"always", "a"}
    waits = [one.reason for one in actions if isinstance(one, WaitForMemory)]
    assert waits == [f"it may need 70 GiB on this{NO_ROOM}"]
    world.state = replace(
        world.state, desired={k: v for k, v in world.state.desired.items() if k != "always"}
    )
    world.rounds(5)
    assert world.running == {"b"}, "there is room for it alone now"


def test_one_that_is_not_on_demand_has_the_memory_at_once_and_waits_until_it_is_free():
    world = DemandWorld(on_demand("a"))
    world.request("a")
    world.rounds(3)
    always = wanted("always", 50)
    world.apply(always)
    first = world.round()
    assert unloads(first) == [("a", "it made room for always")]
    assert not [one for one in first if isinstance(one, StartGroup)], "it would run out of memory"
    actions = world.rounds(100)
    assert world.running == {"always"}
    assert unloads(actions) == []
    assert [(one.deployment, one.reason) for one in actions if isinstance(one, WaitForMemory)] == [
        ("a", f"it may need 80 GiB on this{NO_ROOM}")
    ]


def test_a_deployment_of_which_no_gateway_reports_is_left_alone():
    world = DemandWorld(on_demand("a", idle=30))
    world.request("a")
    world.rounds(3)
    state = replace(world.state, demand={})
    world.state = state
    world.request("a", 0)
    for _ in range(100):
        actions = PolicyWorld.round(world)
        assert unloads(actions) == []
    assert world.running == {"a"}


def test_a_new_controller_keeps_what_runs_and_starts_nothing():
    world = DemandWorld(on_demand("a"), on_demand("b"))
    world.request("a")
    world.rounds(3)
    world.state = replace(world.state, pending=type(world.state.pending)())
    assert world.rounds(5) == []
    assert world.running == {"a"}


def test_a_deleted_one_that_is_applied_again_waits_for_a_request():
    world = DemandWorld(on_demand("a"))
    world.request("a")
    world.rounds(3)
    one = world.state.desired["a"]
    world.state = replace(world.state, desired={})
    world.rounds(3)
    assert world.running == set()
    world.request("a", 0)
    world.state = replace(world.state, desired={"a": one})
    world.rounds(3)
    assert world.running == set()
    assert world.state.pending.unloaded == {}, "it has not run yet"


def test_an_edit_of_one_that_runs_replaces_it_and_of_one_that_does_not_starts_nothing():
    world = DemandWorld(on_demand("a", 40))
    second = on_demand("a", 30, generation=2)
    world.apply(second)
    assert world.rounds(3) == []
    world = DemandWorld(on_demand("a", 40))
    world.request("a")
    world.rounds(3)
    world.apply(second)
    world.rounds(5)
    assert {(app.generation, app.status) for app in world.state.apps} == {(2, "running")}


def test_a_fleet_rests_unless_time_may_load_or_unload_something():
    idle, used = DemandWorld(on_demand("a", idle=30)), DemandWorld(on_demand("a", idle=30))
    for world in (idle, used):
        world.request("a")
        world.rounds(3)
    idle.request("a", 0)
    idle.round()
    assert (changes_by_time(idle.state), changes_by_time(used.state)) == (True, False)
    assert (is_at_rest(idle.state), is_at_rest(used.state)) == (False, True)
