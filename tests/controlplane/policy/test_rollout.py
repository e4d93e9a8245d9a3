import pytest
from control_values import deployment, plan
from hypothesis import example, given
from hypothesis import strategies as st

from sparkfleet.controlplane.policy.actions import BeginAttempt, EndAttempt, StartGroup
from sparkfleet.controlplane.policy.decide import decide as decide_state
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App

GIVEN_UP = {"standings": {("m", 2, 0): Standing(given_up=True)}}


def app(generation, status="running", name="m", replica=0):
    return App(deployment=name, generation=generation, replica=replica, status=status)


NEEDS = {True: 1.0, False: 9.0, None: 1.0}
"""Memory that a generation needs which fits, does not, or is not known to, beside 5 bytes that are free."""


def decide(wanted, apps, room, groups=1, **fields):
    """Actions on groups; `room` is true for a name if both of its generations fit."""
    desired = {
        name: Desired(
            spec=deployment(name),
            plan=plan(name, groups=groups, high=NEEDS[room.get(name, True)]),
            generation=generation,
            who="me",
            since=0.0,
        )
        for name, generation in wanted.items()
    }
    free = {} if None in room.values() else {"this": 5}
    state = FleetState(desired=desired, apps=tuple(apps), available=free, **fields)
    actions = decide_state(state, Now.at(0.0))
    return tuple(action for action in actions if isinstance(action, BeginAttempt | EndAttempt))


def verb(action):
    return "deploy" if isinstance(action, StartGroup) else "retire"


def verbs(actions):
    return [(verb(action), *action.group[:2]) for action in actions]


def test_what_is_wanted_and_not_there_is_deployed():
    assert verbs(decide({"m": 1}, [], {})) == [("deploy", "m", 1)]


def test_what_is_there_and_wanted_is_left_alone():
    assert decide({"m": 1}, [app(1)], {}) == ()
    assert decide({"m": 1}, [app(1, "starting")], {}) == ()


def test_what_nobody_wants_is_retired_once():
    assert verbs(decide({}, [app(1)], {})) == [("retire", "m", 1)]
    assert decide({}, [app(1, "retiring")], {}) == ()


def test_the_old_one_serves_until_the_new_one_is_ready():
    assert verbs(decide({"m": 2}, [app(1)], {"m": True})) == [("deploy", "m", 2)]
    assert decide({"m": 2}, [app(1), app(2, "starting")], {}) == ()
    assert verbs(decide({"m": 2}, [app(1), app(2)], {})) == [("retire", "m", 1)]


def test_without_room_for_both_the_old_one_goes_first():
    first = decide({"m": 2}, [app(1)], {"m": False})
    assert verbs(first) == [("retire", "m", 1)]
    assert "memory" in first[0].reason
    assert decide({"m": 2}, [app(1, "retiring")], {"m": False}) == ()
    assert verbs(decide({"m": 2}, [], {"m": False})) == [("deploy", "m", 2)]


@pytest.mark.parametrize(("port", "goes_first"), [(8000, True), (8001, False), (None, False)])
def test_of_two_that_listen_on_the_same_port_the_old_one_goes_first(port, goes_first):
    """The old one would answer the health checks of the new one."""
    old, new = (plan("m", engine="custom", port=one) for one in (8000, port))
    desired = Desired(spec=deployment("m"), plan=new, generation=2, who="me", since=0.0)
    state = FleetState(
        desired={"m": desired},
        apps=(app(1),),
        available={"this": 5},
        older={("m", 1, 0): old.groups[0].choice.candidate},
    )
    (found,) = (one for one in decide_state(state, Now.at(0.0)) if isinstance(one, BeginAttempt | EndAttempt))
    assert verb(found) == ("retire" if goes_first else "deploy")
    if goes_first:
        assert found.reason == "it and g2/0 listen on the same port, 8000"


def test_one_that_serves_nobody_is_not_said_to_serve_or_to_be_in_want_of_memory():
    (gone,) = decide({"m": 2}, [app(1, "starting")], {"m": False})
    assert (verb(gone), gone.reason) == ("retire", "it is not ready, and generation 2 takes its place")
    for status in ("starting", "failed", "retiring"):
        (new,) = decide({"m": 2}, [app(1, status)], {"m": True})
        assert (verb(new), new.reason) == ("deploy", "not running yet")


def test_a_generation_that_failed_leaves_the_old_one_serving():
    assert decide({"m": 2}, [app(1), app(2, "failed")], {}, **GIVEN_UP) == ()


def test_one_that_is_given_up_and_serves_all_the_same_replaces_none():
    """Both ended: the older one was replaced, and the new one was given up."""
    assert verbs(decide({"m": 2}, [app(1), app(2)], {}, **GIVEN_UP)) == [("retire", "m", 2)]


def test_for_a_generation_that_is_given_up_and_gone_the_old_one_is_not_stopped():
    assert decide({"m": 2}, [app(1)], {"m": False}, **GIVEN_UP) == ()


def test_as_long_as_nobody_knows_whether_both_fit_nothing_is_done():
    assert decide({"m": 2}, [app(1)], {"m": None}) == ()
    assert verbs(decide({"m": 2}, [], {"m": None})) == [("deploy", "m", 2)]


def test_each_group_is_an_application_of_its_own():
    actions = decide({"m": 1}, [app(1)], {}, groups=3)
    assert [(verb(a), a.group[2]) for a in actions] == [("deploy", 1), ("deploy", 2)]


def test_the_old_one_goes_when_every_group_of_the_new_one_serves():
    half = [app(1), app(2), app(2, "starting", replica=1)]
    assert decide({"m": 2}, half, {}, groups=2) == ()
    whole = [app(1), app(1, replica=1), app(2), app(2, replica=1)]
    actions = decide({"m": 2}, whole, {}, groups=2)
    assert [(verb(a), *a.group[1:]) for a in actions] == [("retire", 1, 0), ("retire", 1, 1)]


def test_every_action_has_a_reason():
    actions = decide({"a": 1, "b": 2}, [app(1, name="b"), app(1, name="c")], {})
    assert len(actions) == 3
    assert all(action.reason for action in actions)


statuses = st.sampled_from(["starting", "running", "failed", "retiring"])


@example(wanted={"a": 2, "b": 1}, apps={("a", 1): "starting", ("a", 2): "failed"}, room=False)
@example(wanted={"a": 1, "b": 1}, apps={("a", 1): "failed", ("a", 2): "starting"}, room=False)
@given(
    wanted=st.dictionaries(st.sampled_from("ab"), st.integers(1, 3)),
    apps=st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), statuses),
    room=st.booleans(),
)
def test_it_always_converges(wanted, apps, room):
    """Doing what is decided, with applications that start and end, comes to what is wanted and stays there."""
    for _ in range(8):
        now = [App(deployment=n, generation=g, status=s) for (n, g), s in apps.items()]
        # A failure of which nobody knew the answer yet would keep the memory of its older group from others.
        ended = {(*mark, 0): Standing(given_up=True) for mark, status in apps.items() if status == "failed"}
        actions = decide(wanted, now, dict.fromkeys(wanted, room), standings=ended)
        assert len(set(verbs(actions))) == len(actions)
        apps = {mark: _grown(status) for mark, status in apps.items() if status != "retiring"}
        for action in actions:
            apps[action.group[:2]] = "retiring" if verb(action) == "retire" else "starting"
    stuck = {mark for mark, status in apps.items() if status == "failed"}
    serving = {mark for mark in apps if mark not in stuck}
    assert {mark for mark in serving if mark[0] not in wanted} == set()
    for name, generation in wanted.items():
        assert (name, generation) in apps


def _grown(status):
    return "running" if status == "starting" else status


def test_actions_are_values():
    assert decide({"m": 1}, [], {})[0] == StartGroup(
        group=("m", 1, 0), nodes=("this",), reason="not running yet"
    )
