"""Deployments on demand whose newest generation does not start: the one that served before serves their requests."""

from dataclasses import replace

import pytest
from demand_world import DemandWorld, on_demand, unloads

from sparkfleet.controlplane.policy.actions import GiveUp, LoadDeployment, StartGroup, WaitForMemory
from sparkfleet.controlplane.policy.decide import is_at_rest
from sparkfleet.controlplane.policy.demand.claim_room import LEAST_SERVED_S, UNUSED_S
from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.policy.start_choice import loadable, startable
from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause

OLD, NEW = ("a", 1, 0), ("a", 2, 0)
BROKEN = Diagnosis(cause=Cause.FLAG, summary="The engine rejects an argument.")
REFUSED = Diagnosis(cause=Cause.MEMORY, summary="It needs more than is free.", began=False)


class EditedWorld(DemandWorld):
    """Generation 1 of `a` has served; some groups do not start, each for a reason."""

    def __init__(self, *others, gib=80, old_gib=80, failing=None, served=True):
        self.old = on_demand("a", old_gib)
        super().__init__(self.old, *others, start=self.why)
        self.failing = {NEW: BROKEN} if failing is None else failing
        self.served = served
        self.apply(on_demand("a", gib, generation=2))

    def why(self, group):
        return self.failing.get(group)

    def round(self):
        one = self.state.desired["a"]
        is_searched = self.state.has_given_up(one) or self.state.demand.get("a", None) is not None
        served = {"a": self.old} if self.served and is_searched and one.generation > 1 else {}
        self.state = replace(self.state, last_served=served)
        return super().round()

    @property
    def there(self):
        """Groups that run."""
        return {app.group for app in self.state.apps if app.status == "running"}


def loads(actions):
    return [(one.deployment, one.generation) for one in actions if isinstance(one, LoadDeployment)]


def test_the_request_that_waits_is_served_by_the_generation_before():
    world = EditedWorld()
    world.request("a")
    actions = world.rounds(10)
    assert world.there == {OLD}
    assert loads(actions) == [("a", 2)]


def test_each_later_load_starts_the_generation_before_at_once():
    world = EditedWorld()
    world.request("a")
    world.rounds(10)
    world.request("a", 0)
    world.apply(on_demand("a", 80, generation=2, idle=30))
    assert unloads(world.rounds(40)) == [("a", "no request for 30 s")]
    assert (world.there, startable(world.state, world.state.desired["a"])) == (set(), 1)
    world.request("a")
    actions = world.rounds(5)
    assert loads(actions) == [("a", 1)]
    assert [one.group for one in actions if isinstance(one, StartGroup)] == [OLD]
    assert world.there == {OLD}


def test_it_takes_turns_with_others_as_any():
    world = EditedWorld(on_demand("b"))
    world.request("a")
    world.rounds(10)
    world.request("b")
    first = world.rounds(LEAST_SERVED_S + 10)
    assert unloads(first) == [("a", "it made room for b")]
    assert world.running == {"b"}
    second = world.rounds(LEAST_SERVED_S + 10)
    assert unloads(second) == [("b", "it made room for a")]
    assert world.there == {OLD}
    waits = [
        one.reason for one in (*first, *second) if isinstance(one, WaitForMemory) and one.deployment == "a"
    ]
    assert waits[-1] == (
        "generation 2 does not start, and generation 1 served before: it starts once b ends, which has its memory"
    )


def test_one_that_never_served_is_not_tried():
    world = EditedWorld(served=False)
    world.request("a")
    world.rounds(10)
    assert (world.there, startable(world.state, world.state.desired["a"])) == (set(), None)


def test_if_that_fails_as_well_nothing_starts_until_it_is_applied_again():
    world = EditedWorld(failing={NEW: BROKEN, OLD: BROKEN})
    world.request("a")
    world.rounds(10)
    began = len(world.began)
    assert world.rounds(20) == []
    assert (len(world.began), startable(world.state, world.state.desired["a"])) == (began, None)
    world.apply(on_demand("a", 80, generation=3))
    world.rounds(10)
    assert world.there == {("a", 3, 0)}


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_mended_edit_replaces_it(is_loaded):
    world = EditedWorld()
    world.request("a")
    world.rounds(10)
    if not is_loaded:
        world.request("a", 0)
        world.apply(on_demand("a", 80, generation=2, idle=30))
        world.rounds(40)
    world.apply(on_demand("a", 80, generation=3))
    world.request("a")
    world.rounds(10)
    assert world.there == {("a", 3, 0)}


def test_a_new_controller_goes_on_with_it():
    world = EditedWorld(on_demand("b"))
    world.request("a")
    for _ in range(10):
        world.round()
        world.state = replace(world.state, pending=type(world.state.pending)())
    assert world.there == {OLD}
    assert world.rounds(5) == []


def test_another_is_not_ended_for_nothing_while_the_memory_is_kept_for_it():
    world = EditedWorld(on_demand("b", 30))
    world.request("a")
    while NEW not in [app.group for app in world.state.apps if app.status == "failed"]:
        world.round()
    world.request("b")
    world.rounds(10)
    assert world.there == {OLD}


def test_a_newer_one_that_was_refused_its_memory_is_tried_again_by_the_next_load():
    world = EditedWorld(old_gib=40, failing={NEW: REFUSED})
    world.request("a")
    world.round()
    world.taken = 50
    world.rounds(10)
    assert (world.there, world.state.standing(NEW).refused) == ({OLD}, 1)
    world.request("a", 0)
    world.apply(on_demand("a", 80, generation=2, idle=30))
    world.taken, world.failing = 0, {}
    world.rounds(40)
    assert world.there == set()
    world.request("a")
    assert loads(world.rounds(10)) == [("a", 2)]
    assert world.there == {NEW}


def test_the_older_one_that_was_refused_its_memory_waits_for_its_turn_a_few_times():
    world = EditedWorld(failing={NEW: BROKEN, OLD: REFUSED})
    world.request("a")
    actions = world.rounds(20)
    given_up = [one.standing.refused for one in actions if isinstance(one, GiveUp) and one.group == OLD]
    assert given_up == [*range(1, RETRIES + 1), 0]
    assert startable(world.state, world.state.desired["a"]) is None


def test_one_that_lacks_memory_for_long_leaves_its_requests_to_the_generation_before():
    world = EditedWorld(gib=95, failing={})
    world.taken = 10
    world.request("a")
    assert loads(world.rounds(GONE_S - 5)) == []
    actions = world.rounds(20)
    assert loads(actions) == [("a", 1)]
    (given_up,) = [one for one in actions if isinstance(one, GiveUp)]
    assert (given_up.group, given_up.standing.refused) == (NEW, 1)
    assert given_up.reason == (
        "it may need 95 GiB on this, which is more than is free, and nothing that could end for it holds as much;"
        " generation 1, which served before, starts instead"
    )
    assert world.there == {OLD}
    world.request("a", 0)
    world.apply(on_demand("a", 95, generation=2, idle=30))
    world.rounds(40)
    world.request("a")
    assert loads(world.rounds(5)) == [("a", 1)], "at once: it is known that the newer one does not fit"
    world.request("a", 0)
    world.rounds(40)
    world.taken = 0
    world.request("a")
    assert loads(world.rounds(5)) == [("a", 2)]
    assert world.there == {NEW}


def test_others_end_for_the_generation_before_if_that_fits_then():
    world = EditedWorld(on_demand("b", 60), gib=95, failing={})
    world.taken = 10
    world.request("b")
    world.rounds(3)
    world.request("b", 0)
    world.request("a")
    actions = world.rounds(GONE_S + UNUSED_S + 20)
    assert unloads(actions) == [("b", "it made room for a")]
    assert world.there == {OLD}


def test_groups_that_start_are_loaded_without_one_that_does_not():
    one = on_demand("a", 30)
    plan = one.plan.model_copy(update={"groups": one.plan.groups * 2})
    world = DemandWorld(one.model_copy(update={"plan": plan}))
    world.state = replace(world.state, standings={("a", 1, 1): Standing(given_up=True)})
    desired = world.state.desired["a"]
    assert [each.groups for each in loadable(world.state, desired)] == [(("a", 1, 0),)]
    world.request("a")
    world.rounds(5)
    assert [app.group for app in world.state.apps] == [("a", 1, 0)]


def test_a_fleet_with_it_rests_while_nobody_waits():
    world = EditedWorld()
    world.request("a")
    world.rounds(10)
    world.request("a", 0)
    world.rounds(5)
    assert is_at_rest(world.state)
