"""Groups over two simulated Sparks: real vLLM with TP=2, collectives over the rails; what happens when a part dies."""

import json
import re
import time

import pytest
from asking import Asking
from pair_fleet import LONG_START_S, TINY, events_of

pytestmark = pytest.mark.integration

QUESTION = {"model": "tiny", "prompt": "A rail is", "max_tokens": 40, "temperature": 0}
RAILS = ("enp1s0f1np1", "enP2p1s0f1np1")
LAN = "enP7s7"
TWO = "parallel: {tp: 2}\n"


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


@pytest.fixture
def served(fleet):
    """The fleet with `tiny` served by both Sparks as one, by a generation that has not fallen."""
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    return fleet


def says(fleet):
    return fleet.ask("/completions", QUESTION)["choices"][0]["text"]


def group(fleet):
    """The newest generation's: an older one may still be draining."""
    return max(fleet.deployment()["groups"], key=lambda group: group["generation"])


def pids(fleet):
    return pids_of(group(fleet))


def pids_of(group):
    return [rank["pid"] for rank in group["ranks"]]


def children(fleet, node, pid):
    """A process and everything that it has started, and those in turn."""
    lines = fleet.lab.exec(node, ["ps", "-eo", "pid,ppid", "--no-headers"]).stdout.splitlines()
    parents = {int(child): int(parent) for child, parent in (line.split() for line in lines)}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alone_on(fleet, node):
    """True if one rank runs on a node, and none of an earlier start beside it."""
    ranks = [words for words in fleet.engines(node).values() if " -m " in words]
    return len(ranks) == 1


def replaced(fleet, before, timeout=300):
    """Wait until the group is ready with other processes on every node; of the old ones none may be left.

    Each rank is compared with itself: a node of the lab numbers its processes alone, so that the new one on one may have
    the number of the old one on the other."""

    def all_others():
        now = fleet.ready_group()
        return now and all(new != old for new, old in zip(pids_of(now), before, strict=True))

    fleet.until(all_others, timeout=timeout)
    for rank, old in zip(group(fleet)["ranks"], before, strict=True):
        assert old not in fleet.listed(rank["node"])


def test_two_ranks_say_what_one_says_and_talk_over_the_rails(fleet):
    fleet.serve(fleet.spec("nodes: [spark1]\n", real=True))
    alone = says(fleet)
    fleet.ok("delete", "--yes", "tiny")
    out = fleet.serve(fleet.spec(TWO, real=True))
    assert "ready" in out
    assert re.search(r"starting the engine .+ first token .+ Time: \d", " ".join(out.split())), out
    assert fleet.start_phases() >= {"loading", "warming", "up"}
    assert [rank["node"] for rank in group(fleet)["ranks"]] == ["spark1", "spark2"]
    before = fleet.traffic("spark2")
    assert says(fleet) == alone
    after = fleet.traffic("spark2")
    moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
    assert max(moved[name] for name in RAILS) > 50_000, "all-reduces of 40 tokens"
    assert moved[LAN] < 20_000


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=[pytest.mark.full, pytest.mark.any_engine])])
def test_any_rank_that_dies_under_load_ends_the_group_and_it_is_replaced_as_a_whole(served, victim):
    fleet, before = served, pids(served)
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


@pytest.mark.full
def test_a_supervisor_that_dies_takes_its_rank_along(served):
    """Children of a rank do not outlive what watches them: their memory would be missing, and nobody would know why."""
    fleet = served
    before = pids(fleet)
    spark2 = children(fleet, "spark2", before[1])
    supervisor = fleet.lab.exec("spark2", ["ps", "-o", "ppid=", "-p", str(before[1])]).stdout.strip()
    fleet.lab.exec("spark2", ["kill", "-9", supervisor])
    replaced(fleet, before)
    assert not spark2 & set(fleet.listed("spark2")), "of the old rank nothing is left"
    assert says(fleet)


def hang(fleet):
    """Have the engine compute nothing any more, as one that hangs in a kernel; its server still answers 200."""
    url = group(fleet)["url"]
    if fleet.real:
        # A child that it has just forked has its name until it runs another program.
        cores = [str(pid) for pid, words in fleet.listed("spark1").items() if "EngineCore" in words]
        assert cores
        fleet.lab.exec("spark1", ["kill", "-STOP", *cores])
    else:
        told = "u.Request(sys.argv[1]+'/fake/fault', b'{\"kind\":\"hang\"}', method='PUT')"
        put = f"import sys,urllib.request as u; u.urlopen({told})"
        assert fleet.lab.exec("spark1", ["python3", "-c", put, url]).returncode == 0
    assert fleet.engine_get("/health")[0] == 200


@pytest.mark.full
def test_an_engine_that_moves_no_token_is_replaced_while_its_health_is_well(served):
    fleet, before = served, pids(served)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        hang(fleet)
        replaced(fleet, before)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert not asking.dishonest, asking.dishonest
    events = fleet.ok("describe", "tiny")
    assert "generates no tokens" in events


@pytest.mark.full
@pytest.mark.any_engine
def test_one_that_hangs_while_it_is_idle_is_replaced(served):
    """Its own figures show that there is nothing to do, before and after: they are written by what hangs."""
    before = pids(served)
    hang(served)
    replaced(served, before)
    assert "generates no tokens" in served.ok("describe", "tiny")
    assert says(served)


def test_a_groups_actor_that_dies_is_replaced_and_both_ranks_are_adopted(served):
    fleet = served
    before = pids(fleet)
    code = "import os,signal,sys\nos.kill(int(sys.stdin.read()), signal.SIGKILL)"
    own = f"ray::ServeReplica:tiny--g{group(fleet)['generation']}-"  # the one of an older generation may still be ending
    actor = next(pid for pid, words in fleet.listed("spark1").items() if own in words)
    fleet.lab.exec("spark1", ["python3", "-c", code], stdin=str(actor))
    fleet.until(lambda: (now := fleet.ready_group()) is None or now["adopted"], timeout=60)
    fleet.until(lambda: (now := fleet.ready_group()) and now["adopted"])
    assert pids(fleet) == before
    assert says(fleet)


def stopped(fleet, node, words):
    """Stops the process with these words in its command line; its id."""
    (pid,) = [pid for pid, line in fleet.listed(node).items() if words in line]
    fleet.lab.exec(node, ["kill", "-STOP", str(pid)])
    return pid


@pytest.mark.full
@pytest.mark.any_engine
@pytest.mark.parametrize("seconds", [16, 60])
def test_a_groups_actor_that_is_stopped_costs_no_engine(served, seconds):
    """Its guard ends it after 8 s: what follows is what follows a kill."""
    fleet, before = served, pids(served)
    pid = stopped(fleet, "spark1", f"ray::ServeReplica:tiny--g{group(fleet)['generation']}-")
    time.sleep(seconds)
    fleet.lab.exec("spark1", ["kill", "-CONT", str(pid)])
    fleet.until(lambda: (now := fleet.ready_group()) and now["adopted"], timeout=90)
    assert pids(fleet) == before
    assert says(fleet)
    _, events = events_of(fleet, "tiny")
    assert any("did not run for 8 s and was ended" in event["message"] for event in events)


@pytest.mark.full
@pytest.mark.any_engine
def test_a_gateway_that_is_stopped_is_replaced_within_10_s(served):
    fleet = served
    fleet.endpoint()
    stopped(fleet, "spark1", "ray::ServeReplica:gateway")
    at = time.time()
    with Asking(fleet, "tiny", tokens=1) as asking:
        fleet.until(lambda: asking.whole_since(at), timeout=30)
    assert min(a["began"] + a["took_s"] for a in asking.answers if a["end"] == "whole") - at < 10
    assert not asking.dishonest, asking.dishonest
    assert says(fleet)


def controllers(fleet):
    return [pid for pid, words in fleet.listed("spark1").items() if "ray::ControllerActor" in words]


@pytest.mark.full
@pytest.mark.any_engine
def test_a_controller_that_dies_is_replaced_and_leaves_the_group_as_it_is(served):
    fleet = served
    before = pids(fleet)
    (old,) = controllers(fleet)
    fleet.lab.exec("spark1", ["kill", "-9", str(old)])
    fleet.until(lambda: controllers(fleet) not in ([], [old]), timeout=60)
    fleet.until(fleet.is_ready, timeout=60)
    assert pids(fleet) == before
    assert says(fleet)


@pytest.mark.any_engine
def test_a_rail_that_is_away_for_seconds_costs_nothing(served):
    fleet = served
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
    """Causes of falls in the present generation, in order."""
    return [event["message"] for event in events_of(fleet, "tiny")[1] if event["kind"] == "failed"]


@pytest.mark.full
def test_a_rail_that_is_away_for_long_ends_the_group_and_it_is_replaced_as_a_whole(served):
    """Ranks hang in a collective, since Gloo has this rail alone: no token for `stuck_s`, then as long as they owe one."""
    fleet = served
    before, fell = pids(fleet), len(failures(fleet))
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.cut("spark1-spark2", 0)
        cut = time.time()
        fleet.until(lambda: len(failures(fleet)) > fell, timeout=120)
        time.sleep(max(0.0, cut + (60 if fleet.real else 20) - time.time()))
        fleet.lab.mend("spark1-spark2")
        replaced(fleet, before)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert failures(fleet)[fell].startswith("It runs but generates no tokens")
    assert not asking.dishonest, asking.dishonest
    fleet.until(lambda: alone_on(fleet, "spark1") and alone_on(fleet, "spark2"), timeout=60)


@pytest.mark.full
def test_a_node_that_loses_its_power_ends_the_group_and_comes_back_with_it(served):
    fleet = served
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.kill("spark2")
        fleet.until(lambda: "spark2 does not answer" in fleet.deployment()["detail"], timeout=15)
        fleet.until(lambda: not fleet.is_ready(), timeout=90)
        fleet.until(lambda: any(answer["words"].startswith("503") for answer in asking.answers), timeout=60)
        # Clients are told at once; an engine that is asked to end takes its seconds. No rank survives alone.
        fleet.until(lambda: before[0] not in fleet.listed("spark1"), timeout=60)
        fleet.lab.boot("spark2")
        fleet.until(fleet.is_ready, timeout=400)
        again = time.time()
        fleet.until(lambda: asking.whole_since(again), timeout=60)
    assert not asking.dishonest, asking.dishonest


@pytest.mark.full
def test_experts_are_dealt_out_over_both_and_say_what_one_says(fleet):
    """TP=2 with EP=2: each rank holds half of the experts."""
    fleet.bring("tiny-moe")
    moe = TINY.replace("builtin:tiny", "builtin:tiny-moe")
    fleet.serve(fleet.spec("nodes: [spark1]\n", text=moe, real=True))
    alone = says(fleet)
    fleet.ok("delete", "--yes", "tiny")
    fleet.serve(fleet.spec("parallel: {tp: 2, ep: 2}\n", text=moe, real=True))
    assert len(group(fleet)["ranks"]) == 2
    serving = [words for words in fleet.listed("spark2").values() if "vllm.entrypoints" in words]
    assert any("--enable-expert-parallel" in words for words in serving)
    assert says(fleet) == alone
    assert group(fleet)["measured"]["own_agreement"] > 0.9


@pytest.mark.full
@pytest.mark.any_engine
@pytest.mark.parametrize("away_s", [5, 90])
def test_a_node_that_loses_its_power_while_a_group_starts_is_waited_for(fleet, away_s):
    """It is back before Ray has seen that it was away, or after that."""
    for other in [d["name"] for d in fleet.deployments()]:
        fleet.ok("delete", "--yes", other)
    text = TINY.replace("tiny\n", "pair\n", 1)
    spec = fleet.anew(fleet.spec(TWO, text=text, start_s=LONG_START_S))
    fleet.ok("apply", "--yes", "--no-wait", fleet.write("pair.yaml", spec))

    fleet.until(lambda: alone_on(fleet, "spark1") and alone_on(fleet, "spark2"), timeout=120)
    assert fleet.deployment("pair")["state"] == "starting"
    failures = fleet.status()["failures"]
    fleet.lab.kill("spark2")
    time.sleep(away_s)
    fleet.lab.boot("spark2")
    fleet.until(lambda: (fleet.deployment("pair") or {}).get("state") in ("ready", "failed"), timeout=400)
    deployment, events = events_of(fleet, "pair")
    assert deployment["state"] == "ready", events
    assert deployment["groups"][0]["rung"] == 0
    (counted,) = (event["message"] for event in events if event["kind"] == "fallback")
    assert "spark2 went away while it was starting" in counted
    assert fleet.status()["failures"] == failures, "of other tests"


def messages(fleet, kind, after):
    """Events of all generations of `tiny` after the one with that id."""
    events = json.loads(fleet.ok("describe", "tiny", "--json"))["events"]
    return [event["message"] for event in events if event["kind"] == kind and event["id"] > after]


@pytest.mark.full
@pytest.mark.any_engine
def test_an_older_group_whose_starts_take_its_node_down_twice_is_retired(fleet):
    """It serves until its successor is ready; Serve started it again without end, and nobody counted."""
    fleet.serve(fleet.anew(fleet.spec("nodes: [spark2]\n", start_s=LONG_START_S)))
    (engine,) = pids(fleet)
    newer = fleet.anew(fleet.spec("nodes: [spark1]\n", start_s=600))
    fleet.ok("apply", "--yes", "--no-wait", fleet.write("newer.yaml", newer))
    fleet.until(lambda: alone_on(fleet, "spark1"), timeout=60)
    began = fleet.fleet_status()["last_event"]
    fleet.lab.exec("spark2", ["kill", "-9", str(engine)])
    fleet.until(lambda: engine not in fleet.listed("spark2") and alone_on(fleet, "spark2"), timeout=60)
    fleet.lab.reboot("spark2")
    fleet.until(lambda: messages(fleet, "fallback", began), timeout=90)
    assert "spark2 went away while it was starting" in messages(fleet, "fallback", began)[0]
    fleet.until(lambda: alone_on(fleet, "spark2"), timeout=120)
    fleet.lab.reboot("spark2")
    twice = "out of memory, 2 times; generation"
    fleet.until(lambda: any(twice in one for one in messages(fleet, "failed", began)), timeout=90)
    fleet.until(lambda: len(fleet.placement_groups()) == 1 and not fleet.engines("spark2"), timeout=60)
    assert alone_on(fleet, "spark1"), "its successor goes on"
