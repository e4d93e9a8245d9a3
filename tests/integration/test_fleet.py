"""A fleet of two Sparks over SSH: brought up, served from, rebooted, taken down."""

import json

import pytest
from pair_fleet import TINY

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

ON_TWO = "nodes: [spark2]\n"

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


@pytest.fixture
def fleet(pair):
    """Two Sparks that serve `tiny` from the second."""
    pair.serve(pair.spec(ON_TWO))
    return pair


def test_up_makes_one_ray_cluster_with_a_label_per_node(fleet):
    assert sorted(fleet.ray_says(NODES)) == ["spark1", "spark2"]
    assert [node["joined"] for node in fleet.status()["nodes"]] == [True, True]


def test_a_strict_spread_lands_on_both(fleet):
    assert sorted(fleet.ray_says(SPREAD)) == ["spark1", "spark2"]


LASTING = ("node_cli keep", "gcs_server", "raylet/raylet", "ray::ControllerActor", "ray::Serve")
"""Words of command lines of what lasts as long as a fleet."""


def test_up_again_changes_nothing(fleet):
    def lasting():
        listed = fleet.listed("spark1").items()
        return {pid for pid, command in listed if any(word in command for word in LASTING)}

    before = lasting()
    assert len(before) >= len(LASTING)
    assert "Already running" in fleet.ok("up")
    # A child of one of them has its name until it runs its program.
    fleet.until(lambda: lasting() == before, timeout=20)


def test_it_serves_from_the_node_that_was_named_and_over_the_rail(fleet):
    before = fleet.traffic("spark2")
    assert fleet.is_sound(fleet.chat())
    (group,) = fleet.deployment()["groups"]
    assert (group["node"], group["phase"]) == ("spark2", "ready")
    assert group["url"].startswith("http://192.168.100.11:")
    after = fleet.traffic("spark2")
    assert after["enp1s0f1np1"] > before["enp1s0f1np1"]


def test_the_endpoint_is_reached_from_here_through_ssh(fleet):
    assert fleet.is_sound(
        fleet.ok("ask", "tiny", "What is a rail?", "--key", "@" + fleet.write("asking.key", fleet.key))
    )
    out = fleet.ok("ask", "tiny", "What is a rail?")
    assert "sparkfleet-ask" not in fleet.ok("keys", "list"), "the key of the question is revoked"
    assert fleet.is_sound(out)


def test_logs_come_from_the_node_of_the_rank(fleet):
    said = fleet.ok("logs", "tiny", "--tail", "200")
    assert ("vllm" if fleet.real else 'fake engine "tiny" on http://192.168.100.11:') in said.lower()


def test_two_replicas_lie_on_two_nodes(fleet):
    fleet.apply(fleet.spec("replicas: 2\n", text=TINY.replace("name: tiny", "name: pair")))
    fleet.until(lambda: fleet.store_copies("spark2", "kept") == newest_copy(fleet), timeout=10)
    groups = fleet.deployment("pair")["groups"]
    assert sorted(group["node"] for group in groups) == ["spark1", "spark2"]
    assert {len(fleet.chat("pair")) > 0 for _ in range(4)} == {True}
    fleet.ok("delete", "--yes", "pair")


def newest_copy(fleet):
    """The head's newest copy of its store, by its name."""
    return sorted(fleet.store_copies("spark1", "backups"), key=lambda line: line.split()[1])[-1:]


@pytest.mark.full
def test_the_other_node_is_rebooted_and_it_heals_by_itself(fleet):
    before = fleet.deployment()["groups"][0]["ranks"][0]["pid"]
    fleet.lab.reboot("spark2")
    fleet.until(lambda: not fleet.is_ready(), timeout=60)
    fleet.until(fleet.is_ready)
    assert fleet.deployment()["groups"][0]["node"] == "spark2"
    assert before is not None
    assert fleet.chat()
    reasons = [event["message"] for event in json.loads(fleet.ok("describe", "tiny", "--json"))["events"]]
    assert (
        "spark2 was switched off or restarted while its engine served; the engine is loaded again" in reasons
    )


def test_the_head_is_rebooted_and_the_engine_elsewhere_is_adopted(fleet):
    """The engine on the other node lives through it: nothing is loaded again."""
    before = fleet.deployment()["groups"][0]["ranks"][0]["pid"]
    fleet.lab.reboot("spark1")
    fleet.until(fleet.is_ready)
    (group,) = fleet.deployment()["groups"]
    assert group["adopted"]
    assert group["ranks"][0]["pid"] == before
    assert fleet.chat()
