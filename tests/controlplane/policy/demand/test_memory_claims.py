"""Deployments on demand that share memory: who ends for whom, who waits, and no memory that is given twice."""

from dataclasses import replace

import pytest
from demand_states import BETWEEN_REQUESTS, IDLE, fleet, report, waits, wanted
from policy_world import application, seen

from sparkfleet.controlplane.policy.actions import (
    EndAttempt,
    ForgetLoad,
    GiveUp,
    KeepStanding,
    LadderStep,
    LoadDeployment,
    RetireGroup,
    StartGroup,
    UnloadDeployment,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.state import Now, Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import name_of
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB

NOW = Now.at(1000.0)


def unloads(state):
    return [one.deployment for one in decide(state, NOW) if isinstance(one, UnloadDeployment)]


def loads(state):
    return [one.deployment for one in decide(state, NOW) if isinstance(one, LoadDeployment)]


def words(state):
    return [one.reason for one in decide(state, NOW) if isinstance(one, WaitForMemory)]


def test_while_the_memory_of_one_is_given_back_no_other_ends():
    a, b, c = wanted("a", 40), wanted("b", 40), wanted("c", 50)
    demand = {"a": IDLE, "b": IDLE, "c": waits()}
    ending = fleet(
        a, b, c, free=10, running=["b"], apps=[application(("a", 1, 0), "retiring")], demand=demand
    )
    assert unloads(replace(ending, pending=replace(ending.pending, unloaded={"a": "c needs it"}))) == []
    assert words(ending) == ["it starts once the memory of what has just ended is free"]
    assert unloads(fleet(a, b, c, free=10, running=["b"], demand=demand)) == ["b"]


def test_memory_of_a_deleted_one_that_still_ends_is_waited_for():
    state = fleet(
        wanted("b", 40),
        wanted("c", 50),
        free=10,
        running=["b"],
        apps=[application(("gone", 1, 0), "retiring")],
        demand={"b": IDLE, "c": waits()},
    )
    assert unloads(replace(state, reports=(*state.reports, report("gone")))) == []
    rungs = [wanted("gone", gib).plan.groups[0].choice for gib in (40, 30)]
    by_plan = [unloads(replace(state, ending={("gone", 1, 0): rung})) for rung in rungs]
    assert by_plan == [[], ["b"]]


@pytest.mark.parametrize(
    ("edited", "apps", "ended"),
    [(2, [(1, "retiring"), (2, "running")], []), (2, [(2, "running")], ["b"]), (2, [(1, "retiring")], ["b"])],
)
def test_memory_of_an_earlier_generation_that_ends_is_waited_for_unless_the_next_one_needs_it(
    edited, apps, ended
):
    a = wanted("a", 40).model_copy(update={"generation": edited})
    state = fleet(
        a,
        wanted("b", 40),
        wanted("c", 40),
        free=10,
        running=["b"],
        apps=[application(("a", number, 0), status) for number, status in apps],
        demand={"b": IDLE, "c": waits()},
        ending={("a", number, 0): a.plan.groups[0].choice for number, status in apps if status == "retiring"},
    )
    assert unloads(replace(state, pending=Pending(loaded=frozenset({"a", "b"})))) == ended


@pytest.mark.parametrize(("gib", "ended"), [(60, []), (45, ["b"])])
def test_memory_that_an_edit_could_not_take_counts_as_given_back(gib, ended):
    """A deployment was ended for one that fitted beside it, because a group that needs more than that was to start."""
    before, edited = wanted("a", 40), wanted("a", gib, generation=2)
    state = fleet(
        edited,
        wanted("b", 40),
        wanted("c", 45),
        free=10,
        running=["b"],
        apps=[application(("a", 1, 0), "retiring")],
        demand={"b": IDLE, "c": waits()},
        ending={("a", 1, 0): before.plan.groups[0].choice},
    )
    assert unloads(replace(state, pending=Pending(loaded=frozenset({"a", "b"})))) == ended


def test_one_that_cannot_start_leaves_the_memory_to_those_after_it():
    state = fleet(
        wanted("large", 70), wanted("c", 20), free=50, demand={"large": waits(900.0), "c": waits(950.0)}
    )
    assert loads(state) == ["c"]


def test_short_requests_do_not_keep_the_place_for_ever():
    a, b = wanted("a", 60), wanted("b", 60)
    state = fleet(a, b, free=30, running=["a"], demand={"a": BETWEEN_REQUESTS, "b": waits()})
    assert unloads(state) == ["a"]
    soon = BETWEEN_REQUESTS._replace(ready_since=NOW.steady - 50.0)
    assert unloads(replace(state, demand={"a": soon, "b": waits()})) == []


@pytest.mark.parametrize(("served_s", "ended"), [(143.0, []), (223.0, ["a"])])
def test_one_that_an_edit_has_started_again_keeps_the_turn_of_its_first_start(served_s, ended):
    """Found by the simulation (seed 480102): its start had taken 222 s and that of the edit 30 s, beside it, so that it was
    ended as soon as the edit was ready."""
    a, b = wanted("a", 60), wanted("b", 60)
    demand = BETWEEN_REQUESTS._replace(ready_since=NOW.steady - served_s, longest_start_s=222.0)
    state = fleet(a, b, free=30, running=["a"], demand={"a": demand, "b": waits()})
    assert unloads(state) == ended


def test_a_new_controller_ends_nothing_that_is_used_before_it_knows_how_long_a_start_takes():
    a, b = wanted("a", 60), wanted("b", 60)
    state = fleet(a, b, free=30, running=["a"], demand={"a": BETWEEN_REQUESTS, "b": waits()})
    assert unloads(replace(state, reports=())) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"drained": frozenset({"that"})}, "that is drained; it starts after `sparkfleet undrain that`"),
        (
            {"nodes": seen(990.0, this="first", that=None)},
            "that does not answer; it starts when that is back",
        ),
        ({"unusable": {"that": "No container tool answers."}}, "that: No container tool answers."),
        (
            {"available": {"this": 10 * GIB}},
            "the free memory of that is not known; it starts once that is reported",
        ),
    ],
)
def test_nothing_ends_for_one_of_whose_nodes_one_lets_nothing_start(change, reason):
    a, b = wanted("a", 60), wanted("b", 60, nodes=("this", "that"))
    state = fleet(a, b, free={"this": 10, "that": 100}, running=["a"], demand={"a": IDLE, "b": waits()})
    assert unloads(state) == ["a"]
    changed = replace(state, **change)
    assert (unloads(changed), loads(changed), words(changed)) == ([], [], [reason])


def test_one_that_needs_two_nodes_ends_another_one_on_each():
    a, b = wanted("a", 60), wanted("b", 60, nodes=("that",))
    c = wanted("c", 80, nodes=("this", "that"))
    demand = {"a": IDLE, "b": IDLE, "c": waits()}
    state = fleet(a, b, c, free={"this": 40, "that": 40}, running=["a", "b"], demand=demand)
    assert unloads(state) == ["a", "b"]
    used = {**demand, "b": BETWEEN_REQUESTS._replace(ready_since=990.0)}
    assert unloads(replace(state, demand=used)) == [], "a would have ended for nothing"


def test_one_whose_memory_is_not_needed_beside_that_of_another_goes_on():
    small, large = wanted("small", 10), wanted("large", 60)
    demand = {"small": IDLE._replace(used_at=100.0), "large": IDLE, "c": waits()}
    state = fleet(small, large, wanted("c", 70), free=20, running=["small", "large"], demand=demand)
    assert unloads(state) == ["large"]


def test_what_starts_may_have_its_memory_already():
    """It is counted twice until it serves: nothing else ends for that."""
    a, y, b = wanted("a", 40), wanted("y", 15), wanted("b", 30)
    state = fleet(
        a,
        y,
        b,
        free=45,
        running=["y"],
        apps=[application(("a", 1, 0), "starting")],
        demand={"a": waits(), "y": IDLE, "b": waits()},
    )
    state = replace(state, pending=Pending(loaded=frozenset({"a", "y"})))
    assert (unloads(state), loads(state)) == ([], [])
    assert words(state) == ["it starts once the memory is known that others take which start now"]


def test_memory_of_one_that_is_loaded_and_not_deployed_yet_is_not_given_again():
    a, b = wanted("a", 60), wanted("b", 60)
    state = fleet(
        a, b, free=100, demand={"a": waits(), "b": waits()}, pending=Pending(loaded=frozenset({"a"}))
    )
    assert loads(state) == []


def test_it_is_loaded_after_its_last_engines_have_ended():
    """Their last report is that they are ready."""
    a = wanted("a", 20)
    state = fleet(a, free=100, apps=[application(("a", 1, 0), "retiring")], demand={"a": waits()})
    assert loads(replace(state, pending=Pending(unloaded={"a": "no request for 30 s"}))) == []


def test_one_that_was_refused_its_memory_waits_for_its_turn():
    a = wanted("a", 60)
    refused = {("a", 1, 0): Standing(given_up=True, refused=1, tries=1)}
    state = fleet(a, free=30, apps=[application(("a", 1, 0), "failed")], standings=refused)
    state = replace(state, pending=Pending(loaded=frozenset({"a"})))
    assert unloads(state) == ["a"]
    again = fleet(
        a,
        free=100,
        standings=refused,
        demand={"a": waits()},
        pending=Pending(unloaded={"a": "its memory was not free"}),
    )
    actions = decide(again, NOW)
    assert [one.standing.given_up for one in actions if isinstance(one, KeepStanding)] == [False]
    assert [one.group for one in actions if isinstance(one, StartGroup)] == [("a", 1, 0)]
    for_good = {("a", 1, 0): Standing(given_up=True)}
    assert loads(replace(again, standings=for_good)) == []


def test_one_whose_memory_another_took_while_it_restarted_keeps_its_rung():
    diagnosis = Diagnosis(cause=Cause.MEMORY, summary="not enough memory is free", began=False)
    a, b = wanted("a", 60), wanted("b", 60)
    state = fleet(a, b, free=30, running=["b"], apps=[application(("a", 1, 0), "starting")])
    failed = report("a", GroupPhase.FAILED, diagnosis=diagnosis, was_starting=True)
    state = replace(
        state,
        reports=(*state.reports, failed),
        standings={("a", 1, 0): Standing(restarts=3)},
        pending=Pending(loaded=frozenset({"a", "b"})),
    )
    actions = decide(state, NOW)
    assert [one.deployment for one in actions if isinstance(one, UnloadDeployment)] == ["a"]
    assert not [one for one in actions if isinstance(one, LadderStep | GiveUp)]


def test_an_edit_onto_a_node_that_another_one_fills_is_not_started_there():
    a, b = wanted("a", 60, generation=2), wanted("b", 60)
    state = fleet(a, b, free=30, running=["b"], demand={"b": BETWEEN_REQUESTS})
    state = replace(state, pending=Pending(loaded=frozenset({"a", "b"})))
    actions = decide(state, NOW)
    assert [one.deployment for one in actions if isinstance(one, UnloadDeployment)] == ["a"]
    assert not [one for one in actions if isinstance(one, StartGroup)]


def test_one_that_was_loaded_without_a_gone_node_starts_at_the_rung_by_which_it_was_loaded():
    """By the memory of its first rung it would wait for ever: nothing moves a group that has no application."""
    first, second = (
        wanted("a", gib, nodes=nodes) for gib, nodes in ((90, ("this", "that")), (20, ("this",)))
    )
    ladder = (first.plan.groups[0].choice, second.plan.groups[0].choice)
    groups = (first.plan.groups[0].model_copy(update={"ladder": ladder}),)
    a = first.model_copy(update={"plan": first.plan.model_copy(update={"groups": groups})})
    away = replace(seen(990.0, this="first", that=None), away_since={"that": 700.0})
    state = fleet(a, free=50, nodes=away, demand={"a": waits()})
    actions = decide(state, NOW)
    assert [one.deployment for one in actions if isinstance(one, LoadDeployment)] == ["a"]
    assert [one.group for one in actions if isinstance(one, StartGroup)] == [("a", 1, 0)]


@pytest.mark.parametrize(("free", "found"), [(50, []), (10, ["a"])])
def test_one_that_is_loaded_and_has_no_group_and_no_memory_waits_for_its_turn(free, found):
    """It kept others from their turn for ever, which waited for its start."""
    state = fleet(wanted("a", 20), free=free, demand={"a": waits()})
    assert unloads(replace(state, pending=Pending(loaded=frozenset({"a"})))) == found


def edit_that_adds_a_group(*others, on=("this",), **fields):
    """A deployment of which one group runs, and an edit has added another one on these nodes."""
    a = wanted("a", 20, nodes=on, generation=2)
    two = a.plan.model_copy(update={"groups": a.plan.groups * 2})
    a = a.model_copy(update={"plan": two, "members": ((1, 0), (2, 1))})
    given = {"demand": {"a": BETWEEN_REQUESTS}, "running": ["a"], **fields}
    return fleet(a, *others, **given)


@pytest.mark.parametrize(
    ("free", "starts", "waits_for"),
    [
        ({"this": 30}, [("a", 2, 1)], []),
        ({"this": 10}, [], ["g2/1: 20 GiB on this are needed, which is more than is free"]),
        ({}, [], ["g2/1: the free memory of this is not known"]),
    ],
)
def test_a_group_that_an_edit_adds_starts_once_its_memory_is_known_and_free(free, starts, waits_for):
    actions = decide(edit_that_adds_a_group(free=free), NOW)
    assert [one.group for one in actions if isinstance(one, StartGroup)] == starts
    assert [one.reason for one in actions if isinstance(one, WaitForMemory)] == waits_for


def test_a_group_that_an_edit_adds_is_placed_on_a_node_that_is_away():
    """It takes a rung without that node if it does not come back, which one that is not placed would not."""
    away = seen(990.0, this="first", that=None)
    state = edit_that_adds_a_group(free=100, on=("this", "that"), nodes=away)
    assert [one.group for one in decide(state, NOW) if isinstance(one, StartGroup)] == [("a", 2, 1)]


def test_of_two_reasons_for_a_wait_one_is_recorded():
    """Of each generation the last one is kept, so both would be recorded again in every round."""
    old, new = wanted("b", 20), wanted("b", 20, generation=2, on_demand=False)
    state = edit_that_adds_a_group(
        new, free=10, apps=[application(("b", 1, 0), "running"), application(("b", 2, 0), "starting")]
    )
    state = replace(state, older={("b", 1, 0): old.plan.groups[0].choice.candidate})
    assert words(state) == ["it fits once the older groups of b have ended"]


def test_one_that_runs_always_and_was_refused_its_memory_has_it_back():
    always, a = wanted("always", 60, on_demand=False), wanted("a", 60)
    state = fleet(always, a, free=30, running=["a"], demand={"a": BETWEEN_REQUESTS})
    state = replace(
        state,
        apps=(*state.apps, application(("always", 1, 0), "failed")),
        standings={("always", 1, 0): Standing(given_up=True, refused=1)},
        pending=Pending(loaded=frozenset({"a"}), answered={"always--g1-0": 990.0}),
    )
    assert unloads(state) == ["a"]


def test_a_start_that_was_given_up_for_another_is_over_once_its_nodes_have_answered():
    a = wanted("a", 60)
    state = fleet(
        a, free=100, starts={("a", 1, 0): {"this": "first"}}, pending=Pending(unloaded={"a": "why"})
    )
    assert [one.group for one in decide(state, NOW) if isinstance(one, EndAttempt)] == [("a", 1, 0)]
    assert is_at_rest(replace(state, starts={}))
    unknown = replace(
        state, nodes=seen(990.0, this="first", that=None), starts={("a", 1, 0): {"that": "first"}}
    )
    assert not [one for one in decide(unknown, NOW) if isinstance(one, EndAttempt)]


def test_a_start_that_took_its_only_node_down_is_counted_although_nothing_is_loaded_since():
    """Ray has ended with the node: each request would take it down again."""
    a, group = wanted("a", 60), ("a", 1, 0)
    state = fleet(a, free=100, starts={group: {"this": "before"}})
    (kept,) = [one for one in decide(state, NOW) if isinstance(one, LadderStep | GiveUp)]
    assert (kept.group, kept.standing.tries) == (group, 1)
    assert [one.group for one in decide(state, NOW) if isinstance(one, EndAttempt)] == [group]
    again = replace(state, standings={group: kept.standing})
    (last,) = [one for one in decide(again, NOW) if isinstance(one, LadderStep | GiveUp)]
    assert isinstance(last, GiveUp), name_of(group)


@pytest.mark.parametrize(("free", "found"), [(100, []), (120, [("a", 2, 0)])])
def test_an_edit_does_not_start_beside_the_start_that_it_replaces_unless_memory_holds_both(free, found):
    """Its memory is still free, and both took it."""
    old, new = wanted("a", 60), wanted("a", 60, generation=2)
    need = int(old.plan.groups[0].choice.prediction.memory_bytes_per_rank.high)
    state = fleet(new, free=free, apps=[application(("a", 1, 0), "starting")], demand={"a": waits()})
    older = {("a", 1, 0): old.plan.groups[0].choice.candidate}
    state = replace(
        state, older=older, older_needs={("a", 1, 0): need}, pending=Pending(loaded=frozenset({"a"}))
    )
    actions = decide(state, NOW)
    assert [one.group for one in actions if isinstance(one, StartGroup)] == found
    assert [one.group for one in actions if isinstance(one, RetireGroup)] == ([] if found else [("a", 1, 0)])


@pytest.mark.parametrize("is_fresh", [False, True])
def test_one_that_was_ready_before_its_node_was_restarted_takes_its_memory_again(is_fresh):
    """Its last report is from before that; so may one be that was heard a second ago."""
    a, b, ready = wanted("a", 60), wanted("b", 60), report("a")
    state = fleet(
        a, b, free=100, apps=[application(("a", 1, 0), "starting")], demand={"a": IDLE, "b": waits()}
    )
    fresh = frozenset({ready.name}) if is_fresh else frozenset()
    state = replace(state, reports=(ready,), fresh=fresh, pending=Pending(loaded=frozenset({"a"})))
    assert loads(state) == []


@pytest.mark.parametrize(("free", "found"), [({"this": 100}, ["b"]), ({"this": 100, "that": 100}, [])])
def test_one_that_waited_for_a_node_takes_its_memory_when_that_is_back(free, found):
    """It starts in the moment in which its node joins, and others were loaded in its memory."""
    a, b, group = wanted("a", 60, nodes=("this", "that")), wanted("b", 60), ("a", 1, 0)
    state = fleet(a, b, free=free, apps=[application(group, "starting")], demand={"b": waits()})
    waiting = Pending(loaded=frozenset({"a"}), waiting={group: "that is gone"})
    assert loads(replace(state, pending=waiting)) == found


@pytest.mark.parametrize(("drained", "found"), [({"that"}, ["b"]), ((), [])])
def test_one_that_waited_for_a_drained_node_takes_its_memory_after_that(drained, found):
    a, b, group = wanted("a", 60, nodes=("this", "that")), wanted("b", 60), ("a", 1, 0)
    free = {"this": 100, "that": 100}
    state = fleet(a, b, free=free, apps=[application(group, "starting")], demand={"b": waits()})
    barred, waiting = report("a", GroupPhase.BARRED), Pending(loaded=frozenset({"a"}), waiting={group: ""})
    state = replace(state, reports=(barred,), fresh=frozenset({barred.name}), pending=waiting)
    assert loads(replace(state, drained=frozenset(drained))) == found


def test_what_is_known_of_one_is_dropped_when_it_is_no_longer_on_demand():
    """It would end at once when it is on demand again."""
    state = fleet(wanted("a", 20, on_demand=False), free=100, running=["a"])
    state = replace(state, pending=Pending(unloaded={"a": "no request for 30 s"}))
    assert [one.deployment for one in decide(state, NOW) if isinstance(one, ForgetLoad)] == ["a"]


def test_an_edit_that_waits_for_memory_ends_nothing_and_takes_none():
    """An older engine of it serves on another node, and what is not on demand has the memory before it."""
    a = wanted("a", 60, generation=2)
    older = {("a", 1, 0): wanted("a", 60, nodes=("that",)).plan.groups[0].choice.candidate}
    always = wanted("always", 30, on_demand=False)
    state = fleet(a, always, free={"this": 40, "that": 0}, running=["a"], older=older, demand={"a": IDLE})
    actions = decide(state, NOW)
    assert not [one for one in actions if isinstance(one, UnloadDeployment)]
    assert [one.group for one in actions if isinstance(one, StartGroup)] == [("always", 1, 0)]


def test_an_earlier_generation_that_serves_because_the_next_one_did_not_start_ends_for_another():
    first, second, b = wanted("a", 60), wanted("a", 60, generation=2), wanted("b", 60)
    state = fleet(second, b, free=30, running=["a"], demand={"a": IDLE, "b": waits()})
    given_up = {("a", 2, 0): Standing(given_up=True)}
    assert unloads(replace(state, last_served={"a": first}, standings=given_up)) == ["a"]
