"""A node is lost for good: groups go on with others that were kept for them, and no start takes a second node down."""

import time

import pytest
from pair_fleet import TINY, fleet_of
from stand_in import faked

pytestmark = [pytest.mark.integration, pytest.mark.full]

MOVES_S = 330
"""Ray counts a node without power as gone after 55 s, the controller as lost for good 180 s later; a start."""
SPLIT = f"{TINY}parallel: {{tp: 2}}\nstandby: true\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Three Sparks on a switch."""
    with fleet_of(3, tmp_path_factory.mktemp("three")) as found:
        yield found
        all_there(found)
        found.ok("down")


@pytest.fixture(autouse=True)
def whole(fleet):
    """Every node is there before a test, and nothing is served."""
    all_there(fleet)
    for one in fleet.deployments():
        fleet.ok("delete", "--yes", one["name"])


def all_there(fleet):
    """Switch on what is off, and wait until it has joined."""
    for name in ("spark2", "spark3"):
        fleet.lab.boot(name)
    fleet.until(lambda: all(node["joined"] for node in fleet.status()["nodes"]), timeout=120)


def nodes_of(fleet):
    """Nodes of the ranks that its one group reports; none before its first report."""
    (one,) = fleet.deployments()
    return [rank["node"] for group in one["groups"] for rank in group["ranks"]]


def detail(fleet):
    (one,) = fleet.deployments()
    return one["detail"]


def test_a_group_goes_on_with_the_kept_node_and_back_when_that_is_lost_in_turn(fleet):
    assert (
        "without spark2: rung 2, spark1+spark3"
        in fleet.run("plan", fleet.write("plan.yaml", faked(SPLIT)))[1]
    )
    fleet.apply(faked(SPLIT))
    assert nodes_of(fleet) == ["spark1", "spark2"]

    fleet.lab.kill("spark2")
    fleet.until(
        lambda: "if that lasts 4 min, its group starts on spark1+spark3 (rung 2)" in detail(fleet), timeout=90
    )
    fleet.until(lambda: nodes_of(fleet) == ["spark1", "spark3"] and fleet.is_ready(), timeout=MOVES_S)
    assert fleet.chat().strip()
    assert "rung 2 of its ladder: without spark2" in fleet.ok("status")

    all_there(fleet)
    assert nodes_of(fleet) == ["spark1", "spark3"], "a return is no reason for a start"
    fleet.lab.kill("spark3")
    fleet.until(lambda: nodes_of(fleet) == ["spark1", "spark2"] and fleet.is_ready(), timeout=MOVES_S)
    assert fleet.chat().strip()


def test_a_start_whose_node_goes_away_is_taken_to_no_other_node(fleet):
    fleet.ok("apply", "--yes", "--no-wait", fleet.write("deployment.yaml", faked(SPLIT, start_s=60)))
    fleet.until(lambda: len(nodes_of(fleet)) == 2, timeout=60)
    fleet.lab.kill("spark2")
    fleet.until(lambda: "no other one is to go down with it" in detail(fleet), timeout=MOVES_S)
    time.sleep(10)
    assert "spark3" not in nodes_of(fleet)
    assert not any("fake" in line for line in fleet.processes("spark3"))
    fleet.lab.boot("spark2")
    fleet.until(fleet.is_ready, timeout=180)
    assert nodes_of(fleet) == ["spark1", "spark2"]
