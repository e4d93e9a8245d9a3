"""Memory for a new generation beside the old one: granted once, and not what a start will still take."""

from control_values import deployment, plan

from sparkfleet.controlplane.policy.actions import StartGroup, WaitForMemory
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.memory_admission import fitting
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.units import GIB


def wanted(name, high):
    made = plan(name, high=high * GIB)
    return Desired(spec=deployment(name), plan=made, generation=2, who="me", since=0.0)


def test_memory_is_granted_to_the_first_that_wants_it():
    found = fitting([wanted("a", 4), wanted("b", 4), wanted("c", 2)], [], {"this": 6 * GIB})
    assert found == {"a": True, "b": False, "c": True}


def test_groups_on_one_node_need_their_memory_together():
    made = plan("a", groups=2, high=4 * GIB)
    two = Desired(spec=deployment("a"), plan=made, generation=2, who="me", since=0.0)
    assert fitting([two], [], {"this": 7 * GIB}) == {"a": False}
    assert fitting([two], [], {"this": 8 * GIB}) == {"a": True}


def test_what_a_start_will_still_take_is_taken():
    assert fitting([wanted("a", 4)], [wanted("b", 3)], {"this": 6 * GIB}) == {"a": False}
    assert fitting([wanted("a", 4)], [wanted("b", 2)], {"this": 6 * GIB}) == {"a": True}


def test_of_a_node_that_does_not_say_nothing_is_concluded():
    assert fitting([wanted("a", 1)], [wanted("b", 1)], {"other": 6 * GIB}) == {"a": None}


def app(name, generation, status="running"):
    return App(deployment=name, generation=generation, replica=0, status=status, message="")


def decided(*apps, available):
    """Decisions about `a`, whose generation 2 starts beside its first, and `b`, of which nothing runs."""
    state = FleetState(
        desired={"a": wanted("a", 4), "b": wanted("b", 4)}, apps=apps, available={"this": available * GIB}
    )
    actions = decide(state, Now(steady=1000.0, unix=1000.0))
    started = [one.group[0] for one in actions if isinstance(one, StartGroup)]
    waits = {one.deployment: one.reason for one in actions if isinstance(one, WaitForMemory)}
    return started, waits


def test_nothing_starts_into_memory_that_an_older_group_of_another_deployment_still_has():
    """Found by the simulation (seed 50046): each rung ran out of memory, and the deployment was given up."""
    rolls = (app("a", 1), app("a", 2, "starting"))
    assert decided(*rolls, available=3) == ([], {"b": "it fits once the older groups of a have ended"})
    assert decided(*rolls, available=5) == (["b"], {})
    assert decided(app("a", 2), available=3) == (["b"], {}), "its start itself waits for memory then"


def test_nothing_starts_beside_a_generation_that_begins_to_roll_in_the_same_round_without_memory_for_both():
    """Found by the simulation (seed 70315): both were applied again at once, and the other one was given up."""
    older = app("a", 1)
    assert decided(older, available=5) == (["a"], {"b": "it fits once the older groups of a have ended"})
    assert decided(older, available=8) == (["a", "b"], {})
    assert decided(older, available=3) == (["b"], {}), "the older group of a goes first"
