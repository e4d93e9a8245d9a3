"""Four simulated Sparks on a switch: found, brought up, and taken down again."""

import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

NAMES = ["spark1", "spark2", "spark3", "spark4"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with lab_of(4) as lab:
        yield LabFleet(lab, tmp_path_factory.mktemp("four"))


def test_up_names_a_node_that_is_off_and_brings_all_of_them_together_and_down_leaves_nothing(fleet):
    fleet.lab.kill("spark3")
    code, out, err = fleet.run("doctor", "--no-measure")
    assert code == 1
    assert "spark3" in out
    code, out, err = fleet.run("up")
    assert code == 1
    assert "spark3" in err
    fleet.lab.boot("spark3")
    fleet.ok("up")
    nodes = fleet.status()["nodes"]
    assert [(node["name"], node["joined"]) for node in nodes] == [(name, True) for name in NAMES]
    assert all(node["memory_available"] > 0 for node in nodes)
    fleet.ok("down")
    assert {name: fleet.processes(name) for name in NAMES} == {name: [] for name in NAMES}
    status = fleet.status()
    assert (status["up"], status["fleet"], status["deployments"]) == (False, fleet.lab.name, [])
    assert f"Fleet {fleet.lab.name} is down" in fleet.ok("status")
