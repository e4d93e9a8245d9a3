"""Groups over two simulated Sparks: real vLLM with TP=2, collectives over the rails, and what happens when a part dies."""

import json
import re
import time

import pytest
from asking import Asking
from lab_fleet import UNCOMPILED, LabFleet, lab_of

pytestmark = pytest.mark.integration

TINY = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\n" + UNCOMPILED
ALONE = TINY + "nodes: [spark1]\n"
PAIR = TINY + "parallel: {tp: 2}\n"
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
        remove(fleet)
        # Before `down`, which would sweep whatever is left.
        fleet.until(lambda: fleet.placement_groups() == [], timeout=60)
        for node in lab.nodes:
            engines = [words for words in listed(fleet, node.name).values() if "vllm" in words.lower()]
            assert not engines, f"{node.name}: {engines}"
        fleet.ok("down")
        for look in (fleet.processes, fleet.listening):
            assert {node.name: look(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


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
    return pids_of(group(fleet))


def pids_of(group):
    return [rank["pid"] for rank in group["ranks"]]


def listed(fleet, node):
    """Command lines on a node, by process id."""
    lines = fleet.lab.exec(node, ["ps", "-eo", "pid,args", "--no-headers"]).stdout.splitlines()
    return {int(pid): words for pid, _, words in (line.strip().partition(" ") for line in lines)}


def children(fleet, node, pid):
    """A process and everything that it has started, and those in turn."""
    lines = fleet.lab.exec(node, ["ps", "-eo", "pid,ppid", "--no-headers"]).stdout.splitlines()
    parents = {int(child): int(parent) for child, parent in (line.split() for line in lines)}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alone_on(fleet, node):
    """Whether one rank runs on a node, and none of an earlier start beside it."""
    return (
        sum("vllm.entrypoints" in words and "-m" in words.split() for words in listed(fleet, node).values())
        == 1
    )


def replaced(fleet, before, timeout=300):
    """Wait until the group is ready with other processes on every node; of the old ones none may be left."""
    fleet.until(lambda: (now := fleet.ready_group()) and not set(pids_of(now)) & set(before), timeout=timeout)
    for rank, old in zip(group(fleet)["ranks"], before, strict=True):
        assert old not in listed(fleet, rank["node"])


def test_two_ranks_say_what_one_says_and_talk_over_the_rails(fleet):
    fleet.apply(ALONE)
    alone = says(fleet)
    fleet.ok("delete", "--yes", "tiny")
    out = fleet.apply(PAIR)
    assert "ready" in out
    assert re.search(r"rank 0: .+ · rank 1: ", " ".join(out.split())), out
    assert [rank["node"] for rank in group(fleet)["ranks"]] == ["spark1", "spark2"]
    before = fleet.traffic("spark2")
    assert says(fleet) == alone
    after = fleet.traffic("spark2")
    moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
    assert max(moved[name] for name in RAILS) > 50_000, "all-reduces of 40 tokens"
    assert moved[LAN] < 20_000


@pytest.mark.parametrize("victim", [1, 0])
def test_any_rank_that_dies_under_load_ends_the_group_and_it_is_replaced_as_a_whole(fleet, victim):
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"] > 1, timeout=60)
        node = group(fleet)["ranks"][victim]["node"]
        fleet.lab.exec(node, ["kill", "-9", str(before[victim])])
        replaced(fleet, before)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert f"exited on {node} (rank {victim})" in fleet.ok("describe", "tiny"), "what it was is told"
    assert asking.ends["told"], "those who were being answered heard of it"
    assert not asking.dishonest, asking.dishonest


def test_a_supervisor_that_dies_takes_its_rank_along(fleet):
    """Children of a rank do not outlive what watches them: their memory would be missing, and nobody would know why."""
    before = pids(fleet)
    spark2 = children(fleet, "spark2", before[1])
    supervisor = fleet.lab.exec("spark2", ["ps", "-o", "ppid=", "-p", str(before[1])]).stdout.strip()
    fleet.lab.exec("spark2", ["kill", "-9", supervisor])
    replaced(fleet, before)
    assert not spark2 & set(listed(fleet, "spark2")), "of the old rank nothing is left"
    assert says(fleet)


def test_an_engine_that_moves_no_token_is_replaced_while_its_health_is_well(fleet):
    """Its core is stopped, as one that hangs in a kernel is; the server before it still says 200."""
    before = pids(fleet)
    (core,) = [pid for pid, words in listed(fleet, "spark1").items() if "EngineCore" in words]
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.exec("spark1", ["kill", "-STOP", str(core)])
        health = "import sys,urllib.request as u; print(u.urlopen(sys.argv[1]+'/health', timeout=5).status)"
        done = fleet.lab.exec("spark1", ["python3", "-c", health, group(fleet)["url"]])
        assert done.stdout == "200\n", done.stderr
        replaced(fleet, before)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert not asking.dishonest, asking.dishonest
    events = fleet.ok("describe", "tiny")
    assert "generates nothing" in events


def test_a_groups_actor_that_dies_is_replaced_and_both_ranks_are_adopted(fleet):
    before = pids(fleet)
    code = "import os,signal,sys\nos.kill(int(sys.stdin.read()), signal.SIGKILL)"
    listed = fleet.lab.exec("spark1", ["ps", "-eo", "pid,args", "--no-headers"]).stdout.splitlines()
    actor = next(line.split()[0] for line in listed if "ray::ServeReplica:tiny" in line)
    fleet.lab.exec("spark1", ["python3", "-c", code], stdin=actor)
    fleet.until(lambda: (now := fleet.ready_group()) is None or now["adopted"], timeout=60)
    fleet.until(lambda: (now := fleet.ready_group()) and now["adopted"])
    assert pids(fleet) == before
    assert says(fleet)


def controllers(fleet):
    return [pid for pid, words in listed(fleet, "spark1").items() if "ray::ControllerActor" in words]


def test_a_controller_that_dies_is_replaced_and_leaves_the_group_as_it_is(fleet):
    before = pids(fleet)
    (old,) = controllers(fleet)
    fleet.lab.exec("spark1", ["kill", "-9", str(old)])
    fleet.until(lambda: controllers(fleet) not in ([], [old]), timeout=60)
    fleet.until(fleet.is_ready, timeout=60)
    assert pids(fleet) == before
    assert says(fleet)


def test_a_rail_that_is_away_for_seconds_costs_nothing(fleet):
    # A generation of its own: the breaker has counted every fall of the one before.
    fleet.apply(PAIR.replace("concurrency: 4", "concurrency: 3"))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.cut("spark1-spark2", 0)
        time.sleep(5)
        fleet.lab.mend("spark1-spark2")
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers


def failures(fleet):
    """Why groups of the present generation fell, in order."""
    told = json.loads(fleet.ok("describe", "tiny", "--json"))
    now = told["deployment"]["generation"]
    return [e["message"] for e in told["events"] if (e["generation"], e["kind"]) == (now, "failed")]


def test_a_rail_that_is_away_for_a_minute_ends_the_group_and_it_is_replaced_as_a_whole(fleet):
    """Ranks hang in a collective, since Gloo has this rail alone: 20 s without a token, then 30 s in which they owe one."""
    before, fell = pids(fleet), len(failures(fleet))
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.cut("spark1-spark2", 0)
        cut = time.time()
        fleet.until(lambda: len(failures(fleet)) > fell, timeout=120)
        time.sleep(max(0.0, cut + 60 - time.time()))
        fleet.lab.mend("spark1-spark2")
        replaced(fleet, before)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert failures(fleet)[fell].startswith("It runs and generates nothing")
    assert not asking.dishonest, asking.dishonest
    fleet.until(lambda: alone_on(fleet, "spark1") and alone_on(fleet, "spark2"), timeout=60)


def test_a_node_that_loses_its_power_ends_the_group_and_comes_back_with_it(fleet):
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.kill("spark2")
        fleet.until(lambda: not fleet.is_ready(), timeout=90)
        fleet.until(lambda: any(answer["words"].startswith("503") for answer in asking.answers), timeout=60)
        # Clients are told at once; an engine that is asked to end takes its seconds. No rank survives alone.
        fleet.until(lambda: before[0] not in listed(fleet, "spark1"), timeout=60)
        fleet.lab.boot("spark2")
        fleet.until(fleet.is_ready, timeout=400)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert not asking.dishonest, asking.dishonest


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
    serving = [words for words in listed(fleet, "spark2").values() if "vllm.entrypoints" in words]
    assert any("--enable-expert-parallel" in words for words in serving)
    assert says(fleet) == alone
    assert group(fleet)["measured"]["own_agreement"] > 0.9
    remove(fleet)


@pytest.mark.parametrize("away_s", [5, 90])
def test_a_node_that_loses_its_power_while_a_group_starts_is_waited_for(fleet, away_s):
    """It is back before Ray has seen that it was away, or after that."""
    remove(fleet)
    fleet.ok("apply", "--yes", "--no-wait", fleet.write("pair.yaml", PAIR.replace("tiny\n", "pair\n", 1)))

    fleet.until(lambda: alone_on(fleet, "spark1") and alone_on(fleet, "spark2"), timeout=120)
    assert fleet.deployment("pair")["state"] == "starting"
    fleet.lab.kill("spark2")
    time.sleep(away_s)
    fleet.lab.boot("spark2")
    fleet.until(lambda: (fleet.deployment("pair") or {}).get("state") in ("ready", "failed"), timeout=400)
    told = json.loads(fleet.ok("describe", "pair", "--json"))
    now = told["deployment"]["generation"]
    events = [event for event in told["events"] if event["generation"] == now]
    assert told["deployment"]["state"] == "ready", events
    assert told["deployment"]["groups"][0]["rung"] == 0
    (counted,) = (event["message"] for event in events if event["kind"] == "fallback")
    assert "spark2 went away while it was starting" in counted
    assert fleet.status()["failures"] == []
    fleet.ok("delete", "--yes", "pair")
