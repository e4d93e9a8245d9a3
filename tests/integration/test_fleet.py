"""A fleet of two Sparks over SSH: brought up, served from, rebooted, taken down."""

import pytest
from lab_fleet import UNCOMPILED, LabFleet, lab_of

pytestmark = pytest.mark.integration

TINY = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\n" + UNCOMPILED
ON_TWO = TINY + "nodes: [spark2]\n"

NODES = """
import json, ray
ray.init(address="{address}", _node_ip_address="{host}", logging_level="ERROR", log_to_driver=False)
print(json.dumps([node["Labels"].get("sparkfleet.node") for node in ray.nodes() if node["Alive"]]))
"""

SPREAD = """
import json, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
ray.init(address="{address}", _node_ip_address="{host}", logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=0)
def where():
    return ray.get_runtime_context().get_node_labels()["sparkfleet.node"]

group = placement_group([{{"CPU": 0.001}}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready(), timeout=60)
print(json.dumps(ray.get([
    where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
    for bundle in (0, 1)
], timeout=60)))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks that serve `tiny` from the second. Each test leaves it so."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("fleet"))
        fleet.bring()
        fleet.ok("up")
        fleet.apply(ON_TWO)
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def test_up_makes_one_ray_cluster_with_a_label_per_node(fleet):
    assert sorted(fleet.ray_says(NODES)) == ["spark1", "spark2"]
    assert [node["joined"] for node in fleet.status()["nodes"]] == [True, True]


def test_a_strict_spread_lands_on_both(fleet):
    assert sorted(fleet.ray_says(SPREAD)) == ["spark1", "spark2"]


def test_up_again_changes_nothing(fleet):
    before = fleet.processes("spark1")
    assert "Running already" in fleet.ok("up")
    assert len(fleet.processes("spark1")) == len(before)


def test_it_serves_from_the_node_that_was_named_and_over_the_rail(fleet):
    before = fleet.traffic("spark2")
    answer = fleet.chat()
    assert "QSFP" in answer
    (group,) = fleet.deployment()["groups"]
    assert (group["node"], group["phase"]) == ("spark2", "ready")
    assert group["url"].startswith("http://192.168.100.11:")
    after = fleet.traffic("spark2")
    assert after["enp1s0f1np1"] > before["enp1s0f1np1"]


def test_the_endpoint_is_reached_from_here_through_ssh(fleet):
    out = fleet.ok("ask", "tiny", "What is a rail?", "--key", fleet.key)
    assert "QSFP" in out


def test_logs_come_from_the_node_of_the_rank(fleet):
    assert "vllm" in fleet.ok("logs", "tiny", "--tail", "200").lower()


def test_two_replicas_lie_on_two_nodes(fleet):
    fleet.apply(TINY.replace("name: tiny", "name: pair") + "replicas: 2\n")
    groups = fleet.deployment("pair")["groups"]
    assert sorted(group["node"] for group in groups) == ["spark1", "spark2"]
    assert {len(fleet.chat("pair")) > 0 for _ in range(4)} == {True}
    fleet.ok("delete", "--yes", "pair")


def test_the_other_node_is_rebooted_and_it_heals_by_itself(fleet):
    before = fleet.deployment()["groups"][0]["ranks"][0]["pid"]
    fleet.lab.reboot("spark2")
    fleet.until(lambda: not fleet.is_ready(), timeout=60)
    fleet.until(fleet.is_ready)
    assert fleet.deployment()["groups"][0]["node"] == "spark2"
    assert before is not None
    assert fleet.chat()


def test_the_head_is_rebooted_and_the_engine_elsewhere_is_adopted(fleet):
    """The engine on the other node lives through it: nothing is loaded again."""
    before = fleet.deployment()["groups"][0]["ranks"][0]["pid"]
    fleet.lab.reboot("spark1")
    fleet.until(fleet.is_ready)
    (group,) = fleet.deployment()["groups"]
    assert group["adopted"]
    assert group["ranks"][0]["pid"] == before
    assert fleet.chat()
