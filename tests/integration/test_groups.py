"""Groups over two simulated Sparks: real vLLM with TP=2, collectives over the rails, and what happens when a part dies."""

import json
import time

import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = pytest.mark.integration

ALONE = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\nnodes: [spark1]\n"
PAIR = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\nparallel: {tp: 2}\n"
QUESTION = {"model": "tiny", "prompt": "A rail is", "max_tokens": 40, "temperature": 0}
RAILS = ("enp1s0f1np1", "enP2p1s0f1np1")
LAN = "enP7s7"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks. The tests build on each other: each but the first finds `tiny` served by both of them as one."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("groups"))
        fleet.bring()
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def says(fleet):
    return fleet.ask("/completions", QUESTION)["choices"][0]["text"]


def group(fleet):
    """The newest generation's: an older one may still be draining."""
    return max(fleet.deployment()["groups"], key=lambda group: group["generation"])


def remove(fleet):
    """Nothing is served."""
    if fleet.deployment() is not None:
        fleet.ok("delete", "--yes", "tiny")


def pids(fleet):
    return [rank["pid"] for rank in group(fleet)["ranks"]]


def test_two_ranks_say_what_one_says_and_talk_over_the_rails(fleet):
    fleet.apply(ALONE)
    alone = says(fleet)
    fleet.ok("delete", "--yes", "tiny")
    out = fleet.apply(PAIR)
    assert "ready" in out
    assert [rank["node"] for rank in group(fleet)["ranks"]] == ["spark1", "spark2"]
    before = fleet.traffic("spark2")
    assert says(fleet) == alone
    after = fleet.traffic("spark2")
    moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
    assert max(moved[name] for name in RAILS) > 50_000, "all-reduces of 40 tokens"
    assert moved[LAN] < 20_000


@pytest.mark.parametrize("victim", [1, 0])
def test_any_rank_that_dies_ends_the_group_and_it_is_replaced_as_a_whole(fleet, victim):
    before = pids(fleet)
    node = group(fleet)["ranks"][victim]["node"]
    fleet.lab.exec(node, ["kill", "-9", str(before[victim])])
    fleet.until(lambda: not fleet.is_ready(), timeout=60)
    fleet.until(fleet.is_ready, timeout=300)
    after = pids(fleet)
    assert after[0] != before[0]
    assert after[1] != before[1], "no rank survives alone"
    assert says(fleet)


def test_a_groups_actor_that_dies_is_replaced_and_both_ranks_are_adopted(fleet):
    before = pids(fleet)
    code = "import os,signal,sys\nos.kill(int(sys.stdin.read()), signal.SIGKILL)"
    listed = fleet.lab.exec("spark1", ["ps", "-eo", "pid,args", "--no-headers"]).stdout.splitlines()
    actor = next(line.split()[0] for line in listed if "ray::ServeReplica:tiny" in line)
    fleet.lab.exec("spark1", ["python3", "-c", code], stdin=actor)
    fleet.until(lambda: not fleet.is_ready() or group(fleet)["adopted"], timeout=60)
    fleet.until(lambda: fleet.is_ready() and group(fleet)["adopted"])
    assert pids(fleet) == before
    assert says(fleet)


def test_a_rail_that_is_away_for_a_moment_costs_nothing(fleet):
    before = pids(fleet)
    fleet.lab.cut("spark1-spark2", 0)
    time.sleep(3)
    fleet.lab.mend("spark1-spark2")
    fleet.until(lambda: fleet.is_ready() and json.dumps(says(fleet)))
    assert pids(fleet) == before


def test_experts_are_dealt_out_over_both_and_say_what_one_says(fleet):
    """TP=2 with EP=2: each rank holds half of the experts."""
    fleet.bring("tiny-moe")
    moe = "name: tiny\nmodel: builtin:tiny-moe\ncontext: 512\nconcurrency: 4\n"
    remove(fleet)
    fleet.apply(moe + "nodes: [spark1]\n")
    alone = says(fleet)
    remove(fleet)
    fleet.apply(moe + "parallel: {tp: 2, ep: 2}\n")
    assert len(group(fleet)["ranks"]) == 2
    assert says(fleet) == alone
    assert group(fleet)["measured"]["own_agreement"] > 0.9
    remove(fleet)
