"""Rolls: the order in which older groups end and desired ones start."""

import pytest
from control_values import deployment

from sparkfleet.controlplane.policy.actions import RetireGroup, StartGroup
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now, Pending, SeenNodes
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung

NEEDS = 50.0


def candidate(*nodes, port=None):
    return Candidate(
        model="builtin:tiny",
        shape=GroupShape(nodes=nodes, tp=len(nodes)),
        engine="custom" if port else "vllm",
        engine_version="0",
        context=512,
        concurrency=4,
        port=port,
    )


def group_plan(*nodes, port=None):
    band = Band(low=NEEDS, mid=NEEDS, high=NEEDS)
    rung = Rung(
        candidate=candidate(*nodes, port=port),
        prediction=Prediction(memory_bytes_per_rank=band),
        reason="test",
    )
    return GroupPlan(ladder=(rung,))


class Fleet:
    """Generation 2 of a deployment on these nodes, whose first generation runs on those of `old`, with memory for one group
    on each node. What is decided is done; `serve` and `end` are what happens by itself."""

    def __init__(self, old, new, *, keeps=0, free=0.0, port=None):
        groups = tuple(group_plan(*nodes, port=port) for nodes in new)
        members = (*((1, at) for at in range(keeps)), *((2, at) for at in range(keeps, len(new))))
        self.desired = Desired(
            spec=deployment("m"),
            plan=DeploymentPlan(name="m", objective="interactive", groups=groups),
            generation=2,
            who="me",
            since=0.0,
            members=members,
        )
        self.old = {("m", 1, at): candidate(*nodes, port=port) for at, nodes in enumerate(old)}
        self.apps = dict.fromkeys(self.old, "running")
        self.free = dict.fromkeys({node for nodes in (*old, *new) for node in nodes}, free)
        self.fields = {}
        self.now = Now.at(0.0)

    def act(self):
        """Decisions of one round, as `+g2/0` and `-g1/0`, each with its reason."""
        state = FleetState(
            desired={"m": self.desired},
            apps=tuple(
                App(deployment=name, generation=generation, replica=replica, status=status)
                for (name, generation, replica), status in self.apps.items()
            ),
            **{
                "older": {key: one for key, one in self.old.items() if key not in self.desired.groups},
                "available": {node: int(free) for node, free in self.free.items()},
                **self.fields,
            },
        )
        found = {}
        for action in decide(state, self.now):
            if isinstance(action, StartGroup):
                found["+g{}/{}".format(*action.group[1:])] = action.reason
                self.apps[action.group] = "starting"
            elif isinstance(action, RetireGroup):
                found["-g{}/{}".format(*action.group[1:])] = action.reason
                self.apps[action.group] = "retiring"
        return found

    def serve(self):
        self.apps = {key: "running" if one == "starting" else one for key, one in self.apps.items()}

    def end(self):
        self.apps = {key: one for key, one in self.apps.items() if one != "retiring"}

    def serving(self):
        return sum(one == "running" for one in self.apps.values())

    def roll(self):
        """Every decision until there is none, in order; and the fewest groups that served meanwhile."""
        course, fewest = [], self.serving()
        for _ in range(30):
            acted = [*self.act()]
            fewest = min(fewest, self.serving())
            course += [acted] if acted else []
            if not acted and {*self.apps.values()} == {"running"}:
                return course, fewest
            self.end()
            self.serve()
        raise AssertionError(course)


A, B, C = ("a",), ("b",), ("c",)


def test_replicas_that_do_not_fit_beside_the_old_ones_end_one_after_the_other():
    fleet = Fleet(old=[A, B], new=[A, B])
    assert fleet.act() == {"-g1/0": "it and g2/0 do not fit in memory at once; g1/1 serves meanwhile"}
    assert fleet.act() == {}, "it drains"
    fleet.end()
    assert [*fleet.act()] == ["+g2/0"]
    assert fleet.act() == {}, "g1/1 serves until g2/0 does"
    fleet.serve()
    assert fleet.act() == {"-g1/1": "it and g2/1 do not fit in memory at once; g2/0 serves meanwhile"}
    fleet.end()
    assert [*fleet.act()] == ["+g2/1"]
    fleet.serve()
    assert fleet.act() == {}


def test_with_memory_for_both_all_start_at_once():
    assert Fleet(old=[A, B], new=[A, B], free=NEEDS).roll() == ([["+g2/0", "+g2/1"], ["-g1/0", "-g1/1"]], 2)


def test_what_fits_beside_the_old_ones_starts_before_any_of_them_ends():
    fleet = Fleet(old=[A, B], new=[A, B])
    fleet.free["b"] = NEEDS
    assert fleet.roll() == ([["+g2/1"], ["-g1/0"], ["+g2/0"], ["-g1/1"]], 2)


def test_a_node_without_an_old_group_takes_the_first():
    assert Fleet(old=[A], new=[A, B]).roll() == ([["+g2/1"], ["-g1/0"], ["+g2/0"]], 1)


def test_of_fewer_replicas_the_last_old_one_serves_until_the_first_new_one_does():
    assert Fleet(old=[A, B], new=[A]).roll() == ([["-g1/0"], ["+g2/0"], ["-g1/1"]], 1)


def test_a_group_that_goes_on_serves_meanwhile():
    fleet = Fleet(old=[A, B], new=[A, B], keeps=1)
    assert fleet.act() == {"-g1/1": "it and g2/1 do not fit in memory at once; g1/0 serves meanwhile"}


def test_the_group_that_costs_the_fewest_serving_ones_is_first():
    assert Fleet(old=[A, B, C], new=[("a", "b"), C]).roll() == (
        [["-g1/2"], ["+g2/1"], ["-g1/0", "-g1/1"], ["+g2/0"]],
        1,
    )


def test_one_group_that_needs_every_node_ends_all_others_first():
    assert Fleet(old=[A, B], new=[("a", "b")]).roll() == ([["-g1/0", "-g1/1"], ["+g2/0"]], 0)
    assert Fleet(old=[("a", "b")], new=[A, B]).roll() == ([["-g1/0"], ["+g2/0", "+g2/1"]], 0)


def test_replicas_on_one_declared_port_end_one_after_the_other():
    fleet = Fleet(old=[A, B], new=[A, B], free=NEEDS, port=8000)
    assert fleet.act() == {"-g1/0": "it and g2/0 listen on the same port, 8000; g1/1 serves meanwhile"}
    fleet.end()
    assert fleet.roll()[1] == 1


def test_a_generation_whose_first_group_does_not_start_ends_no_other():
    fleet = Fleet(old=[A, B], new=[A, B])
    fleet.act()
    fleet.end()
    fleet.act()
    fleet.apps[("m", 2, 0)] = "failed"
    fleet.fields["standings"] = {("m", 2, 0): Standing(given_up=True)}
    assert fleet.act() == {}
    assert fleet.apps[("m", 1, 1)] == "running"


@pytest.mark.parametrize(
    ("away_s", "old", "acted"),
    [(GONE_S, [B], ["-g1/0"]), (GONE_S - 1.0, [B], []), (GONE_S, [B, A], []), (GONE_S, [A], [])],
)
def test_older_ones_that_all_wait_for_a_node_that_is_gone_hold_up_no_group_beside_one_that_is_given_up(
    away_s, old, acted
):
    fleet = Fleet(old=old, new=[("a", "b"), A])
    fleet.apps |= {("m", 1, 0): "starting" if old[0] == B else "running", ("m", 2, 1): "failed"}
    fleet.fields = {
        "standings": {("m", 2, 1): Standing(given_up=True)},
        "nodes": SeenNodes(boots={"a": "1", "c": "1"}, away_since={"b": 0.0}, looked_at=away_s),
    }
    fleet.now = Now.at(away_s)
    del fleet.free["b"]
    assert [*fleet.act()] == acted
    fleet.end()
    assert [*fleet.act()] == (["+g2/0"] if acted else [])


def test_an_old_group_that_serves_nobody_ends_at_once():
    fleet = Fleet(old=[A, B], new=[A, B])
    fleet.apps[("m", 1, 1)] = "starting"
    found = fleet.act()
    assert found == {"-g1/1": "it is not ready, and generation 2 takes its place"}
    assert fleet.roll() == ([["+g2/1"], ["-g1/0"], ["+g2/0"]], 1)


@pytest.mark.parametrize(
    ("old", "waits", "acted"), [([B, C], True, ["-g1/0"]), ([B, C], False, []), ([B], True, [])]
)
def test_a_started_group_that_waits_for_a_node_holds_up_the_last_that_serves_only(old, waits, acted):
    fleet = Fleet(old=old, new=[A, *old])
    assert [*fleet.act()] == ["+g2/0"]
    if waits:
        fleet.fields["pending"] = Pending(waiting={("m", 2, 0): "a is gone"})
    assert [*fleet.act()] == acted


def test_an_old_group_whose_nodes_are_not_known_any_more_may_be_on_any():
    fleet = Fleet(old=[A, B], new=[A, C])
    fleet.fields["older"] = {("m", 1, 0): fleet.old["m", 1, 0]}
    fleet.free["c"] = 0.0
    assert [*fleet.act()] == ["-g1/1"]


def test_a_node_that_does_not_report_its_memory_holds_up_its_own_group_only():
    fleet = Fleet(old=[A, B], new=[A, B])
    del fleet.free["a"]
    assert [*fleet.act()] == ["-g1/1"]


def test_for_a_group_that_cannot_start_on_its_node_nothing_ends_there():
    """It ended, and no generation started: its state directory cannot be written."""
    fleet = Fleet(old=[A, B], new=[A, B])
    fleet.fields = {"unusable": {"b": "its state directory cannot be written."}}
    course = []
    for _ in range(5):
        course += fleet.act()
        fleet.end()
        fleet.serve()
    assert course == ["-g1/0", "+g2/0"]
    fleet.fields = {}
    assert fleet.roll() == ([["-g1/1"], ["+g2/1"]], 1)


def test_beside_an_old_group_nothing_starts_on_a_node_on_which_it_cannot():
    fleet = Fleet(old=[A], new=[A], free=NEEDS)
    fleet.fields = {"unusable": {"a": "its state directory cannot be written."}}
    assert fleet.act() == {}
