"""Reports that have arrived, against the one that a controller holds as the newest."""

import pytest
from controller_world import report

from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.arrived_reports import TAKEN_S, ArrivedReports

WORDS = "tiny--g1-0 is ready by"


def sent(actor, number):
    return report(phase=GroupPhase.READY, actor=str(actor), number=number)


@pytest.fixture
def arrives():
    """Violations after a report has arrived, while the controller holds another one as the newest."""
    arrived = ArrivedReports()
    return lambda one, newest, now=0.0: list(arrived.take(one, newest, now))


def test_a_newest_report_that_is_older_than_another_of_its_actor_is_found(arrives):
    assert arrives(sent(1, 1), sent(1, 1)) == arrives(sent(1, 3), sent(1, 3)) == []
    (found,) = arrives(sent(1, 2), sent(1, 2))
    assert found.endswith("is ready by report 2, and 3 has arrived")


def test_a_next_actor_that_is_not_listened_to_is_found_after_a_while(arrives):
    assert arrives(sent(1, 5), sent(1, 5)) == arrives(sent(2, 1), sent(1, 5), 10.0) == []
    (found,) = arrives(sent(2, 2), sent(1, 5), 11.0 + TAKEN_S)
    assert found.endswith("is ready by an actor that was replaced 16.0 s ago")
    assert arrives(sent(1, 6), sent(1, 6), 100.0) == [], "a late one of the actor before"


def test_reports_of_a_group_that_the_controller_has_dropped_count_anew(arrives):
    assert (
        arrives(sent(1, 3), sent(1, 3)) == arrives(sent(1, 1), None) == arrives(sent(1, 1), sent(1, 1)) == []
    )
