"""Memory for a new generation beside the old one: granted once, and not what a start will still take."""

from control_values import deployment, plan

from sparkfleet.controlplane.policy.actions import StartGroup, WaitForMemory
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.memory_admission import granted
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.units import GIB

NOW = Now(steady=1000.0, unix=1000.0)


def wanted(name, high, groups=1):
    made = plan(name, groups=groups, high=high * GIB)
    return Desired(spec=deployment(name), plan=made, generation=2, who="me", since=0.0)


def found(*desired, available, loading=(), node="this"):
    """If the first group of each deployment may start beside its first generation."""
    each = {one.name: one for one in desired}
    reports = [
        GroupReport(
            deployment=name,
            generation=2,
            replica=0,
            phase=GroupPhase.STARTING,
            node="this",
            since=0.0,
            actor="1",
            number=1,
        )
        for name in loading
    ]
    older = [app(name, 1) for name in each if name not in loading]
    starting = [app(name, 2, "starting") for name in loading]
    state = FleetState(
        desired=each,
        apps=(*older, *starting),
        reports=tuple(reports),
        available={node: available * GIB},
    )
    return {group[0] if group[2] == 0 else group: fits for group, fits in granted(state, NOW).items()}


def test_memory_is_granted_to_the_first_that_needs_it():
    each = (wanted("a", 4), wanted("b", 4), wanted("c", 2))
    assert found(*each, available=6) == {"a": True, "b": False, "c": True}


def test_groups_on_one_node_are_granted_their_memory_one_by_one():
    two = wanted("a", 4, groups=2)
    assert found(two, available=7) == {"a": True, ("a", 2, 1): False}
    assert found(two, available=8) == {"a": True, ("a", 2, 1): True}


def test_what_a_start_will_still_take_is_taken():
    assert found(wanted("a", 4), wanted("b", 3), loading=("b",), available=6) == {"a": False}
    assert found(wanted("a", 4), wanted("b", 2), loading=("b",), available=6) == {"a": True}


def test_of_a_node_that_does_not_report_its_memory_nothing_is_concluded():
    assert found(wanted("a", 1), available=6, node="other") == {"a": None}


def app(name, generation, status="running"):
    return App(deployment=name, generation=generation, replica=0, status=status, message="")


def decided(*apps, available):
    """Decisions about `a`, whose generation 2 starts beside its first, and `b`, of which nothing runs."""
    state = FleetState(
        desired={"a": wanted("a", 4), "b": wanted("b", 4)}, apps=apps, available={"this": available * GIB}
    )
    actions = decide(state, NOW)
    started = [one.group[0] for one in actions if isinstance(one, StartGroup)]
    waits = {one.deployment: one.reason for one in actions if isinstance(one, WaitForMemory)}
    return started, waits


def test_nothing_starts_into_memory_that_an_older_group_of_another_deployment_still_has():
    """Found by the simulation (seed 50046): each rung ran out of memory, and the deployment was given up."""
    rolls = (app("a", 1), app("a", 2, "starting"))
    assert decided(*rolls, available=3) == ([], {"b": "it fits once the older groups of a have ended"})
    assert decided(*rolls, available=8) == (["b"], {})
    assert decided(app("a", 2), available=3) == (["b"], {}), "its start itself waits for memory then"


def test_nothing_starts_beside_a_generation_that_begins_to_roll_in_the_same_round_without_memory_for_both():
    """Found by the simulation (seed 70315): both were applied again at once, and the other one was given up."""
    older = app("a", 1)
    assert decided(older, available=5) == (["a"], {"b": "it fits once the older groups of a have ended"})
    assert decided(older, available=8) == (["a", "b"], {})
    assert decided(older, available=3) == (["b"], {}), "the older group of a goes first"
