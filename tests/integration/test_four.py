"""Four simulated Sparks on a switch: found, brought up, and taken down again."""

import json
import sys

import pytest
import yaml
from lab_fleet import CHECKOUT, LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

TALK = f"exec {sys.executable} {CHECKOUT}/tests/integration/stand_ins/speech.py $SPARKFLEET_HOST $SPARKFLEET_PORT"
SPEECH = (
    "name: speech\nmodel: speech/one\nengine: custom\nmemory: 1 GiB\nnodes: [{node}]\nport: 5010\nhealth: /health\n"
    f"command: {json.dumps(['sh', '-c', TALK])}\n"
)
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


def test_a_node_more_or_fewer_takes_effect_at_the_next_up_and_deployments_stay(fleet):
    """The ways of docs/changing.md: the fleet that runs keeps its nodes, and each verb names the difference."""
    every = (fleet.directory / "inventory.yaml").read_text()
    fleet.write("inventory.yaml", yaml.safe_dump(without_the_last(every)))
    fleet.ok("up")
    fleet.apply(SPEECH.format(node="spark1"), "speech.yaml")

    fleet.write("inventory.yaml", every)
    difference = "was started with spark1, spark2, spark3; the inventory has spark1, spark2, spark3, spark4."
    code, _, err = fleet.run("up", timeout=60)
    assert (code, difference in err) == (1, True), err
    assert any(difference in one for one in fleet.status()["warnings"])
    other = SPEECH.format(node="spark4").replace("name: speech", "name: other")
    code, _, err = fleet.run("apply", "--yes", fleet.write("other.yaml", other))
    assert (code, difference in err) == (1, True), err
    fleet.ok("down")
    fleet.ok("up")
    assert [node["joined"] for node in fleet.status()["nodes"]] == [True] * 4
    fleet.until(lambda: fleet.is_ready("speech"), timeout=60)
    fleet.apply(other, "other.yaml")
    fleet.ok("delete", "--yes", "other")

    fleet.ok("down")
    fleet.write("inventory.yaml", yaml.safe_dump(without_the_last(every)))
    fleet.ok("up")
    assert [node["name"] for node in fleet.status()["nodes"]] == NAMES[:3]
    fleet.until(lambda: fleet.is_ready("speech"), timeout=60)
    fleet.ok("down")


def without_the_last(inventory):
    """The inventory of the first three: on a switch each node has its own cable."""
    found = yaml.safe_load(inventory)
    del found["nodes"][NAMES[-1]]
    found["links"] = [link for link in found["links"] if link["nodes"] != [NAMES[-1]]]
    return found
