"""Memory for a new generation beside the old one: granted once, and not what a start will still take."""

from control_values import deployment, plan

from sparkfleet.controlplane.desired import Desired
from sparkfleet.controlplane.policy.memory_admission import fitting
from sparkfleet.units import GIB


def wanted(name, high):
    made = plan(name, high=high * GIB)
    return Desired(spec=deployment(name), plan=made, generation=2, who="me", since=0.0)


def test_memory_is_granted_to_the_first_that_wants_it():
    found = fitting([wanted("a", 4), wanted("b", 4), wanted("c", 2)], [], {"this": 6 * GIB})
    assert found == {"a": True, "b": False, "c": True}


def test_what_a_start_will_still_take_is_taken():
    assert fitting([wanted("a", 4)], [wanted("b", 3)], {"this": 6 * GIB}) == {"a": False}
    assert fitting([wanted("a", 4)], [wanted("b", 2)], {"this": 6 * GIB}) == {"a": True}


def test_of_a_node_that_does_not_say_nothing_is_concluded():
    assert fitting([wanted("a", 1)], [wanted("b", 1)], {"other": 6 * GIB}) == {"a": None}
