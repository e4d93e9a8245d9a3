"""Ranks of a ring meet on the management network: behind the fleet's firewall, or if the inventory accepts it."""

import pytest

from sparkfleet.hostfacts.node import InstalledEngine
from sparkfleet.planner.place.fleet_map import Fleet

NAMES = ("s1", "s2", "s3", "s4")
THREE = NAMES[:3]


@pytest.fixture
def ring(spark, link):
    def ring(*exposed, nodes=NAMES):
        links = tuple(link(*pair) for pair in zip(nodes, (*nodes[1:], nodes[0]), strict=True))
        return Fleet(nodes=tuple(map(spark, nodes)), links=links, exposed=exposed)

    return ring


def test_one_node_without_the_firewall_leaves_the_ring_out_and_no_pair(ring):
    assert ring().pools(4)
    assert not ring().open_rings(4)
    assert ring("s3").pools(4) == ()
    assert ring("s3").open_rings(4)
    assert not ring("s3").open_rings(3), "there is no ring of three"
    assert len(ring(*NAMES).pools(2)) == 4, "the nodes of a cable meet on its rails"
    assert not ring("s3").open_rings(4, ("s1", "s2"))


def test_nodes_of_a_switch_meet_on_its_rails(sparks):
    fleet = sparks(4, switch=True)
    exposed = fleet.model_copy(update={"exposed": tuple(node.name for node in fleet.nodes)})
    assert Fleet.model_validate(exposed.model_dump()).pools(4)
    assert not exposed.open_rings(4)


def test_the_plan_names_the_reason_and_both_remedies(ring, plan, ask):
    wanted = ask("Qwen/Qwen3.6-27B-FP8", engine="vllm", parallel={"tp": 1, "pp": 3})
    assert not plan(ring(nodes=THREE), wanted).refused
    (one,) = plan(ring(*THREE, nodes=THREE), wanted).refused
    (reason,) = [rejected.reason for rejected in one.rejected if rejected.what == "a ring of 3 nodes"]
    assert "PyTorch unpickles" in reason
    assert "`sparkfleet fabric firewall --apply`" in reason
    assert "`lan_rendezvous: true` in the inventory" in reason


def test_so_does_that_of_a_built_in_model(ring, plan, ask):
    wanted = ask("builtin:tiny", parallel={"tp": 4})
    vllm = {"vllm": InstalledEngine(python="python3", version="0.32.0+cpu")}
    cpus = [node.model_copy(update={"gpu": None, "engines": vllm}) for node in ring().nodes]
    exposed = ring(*NAMES).model_copy(update={"nodes": tuple(cpus)})
    (one,) = plan(exposed, wanted).refused
    assert any("`lan_rendezvous: true`" in rejected.reason for rejected in one.rejected)
