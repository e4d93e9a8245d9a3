"""Reboots during a start, and clocks that jump. Two Sparks of a lab, real Ray and SSH, fake engines."""

import time

import pytest
from asking import Asking
from node_faults import Clocks
from pair_faults import THERE, TWO, pids, whole_again
from pair_fleet import LONG_START_S, events_of

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]
HOUR_S = 3600.0


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


def test_a_node_that_is_rebooted_twice_during_a_start_is_not_taken_down_a_third_time(fleet):
    for other in [one["name"] for one in fleet.deployments()]:
        fleet.ok("delete", "--yes", other)
    spec = fleet.anew(fleet.spec(THERE, start_s=LONG_START_S))
    fleet.apply(spec, "tiny.yaml", options=("--no-wait",))
    for _ in range(2):
        fleet.until(lambda: fleet.engines("spark2"), timeout=180)
        fleet.lab.reboot("spark2")
        fleet.until(lambda: not fleet.engines("spark2"), timeout=30)
    fleet.until(lambda: (fleet.deployment() or {}).get("state") == "failed", timeout=240)
    _, events = events_of(fleet, "tiny")
    words = [one["message"] for one in events if one["kind"] in ("fallback", "failed")]
    assert sum("spark2 went away while it was starting" in one for one in words) == 2, events
    assert "`sparkfleet apply` tries once more" in words[-1]
    time.sleep(10)
    assert fleet.engines("spark2") == {}
    fleet.apply(spec, "tiny.yaml")
    assert fleet.is_ready()


@pytest.fixture
def clocks(fleet):
    """Clocks of all programs of the fleet, by node."""
    own = (fleet.directory / "inventory.yaml").read_text()
    fleet.ok("down")
    made = Clocks(fleet, ("spark1", "spark2"))
    fleet.ok("up")
    yield made
    fleet.ok("down")
    fleet.write("inventory.yaml", own)
    fleet.ok("up")


def controllers_clock(fleet):
    """The wall clock of the controller, by its newest event."""
    events = events_of(fleet, "tiny")[1]
    return events[-1]["at"]


def test_clocks_that_jump_an_hour_both_ways_end_nothing_and_stop_no_restart(fleet, clocks):
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        for seconds in (HOUR_S, -HOUR_S, 0.0):
            for node in ("spark1", "spark2"):
                clocks.jump(node, seconds)
                time.sleep(6)
                assert fleet.is_ready()
        whole_again(fleet, asking)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers
    for seconds in (HOUR_S, -HOUR_S):
        clocks.jump("spark1", seconds)
        old = pids(fleet)
        fleet.lab.exec("spark2", ["kill", "-9", str(old[1])])
        fleet.until(lambda old=old: (now := fleet.ready_group()) and pids(fleet) != old and now, timeout=120)
        assert abs(controllers_clock(fleet) - time.time() - seconds) < 200, "the jump reached the controller"
