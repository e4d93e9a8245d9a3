"""Greedy streams whose group is killed go on on the other one, whole; without `replay` they end with an error."""

import time

import pytest
from asking import Asking

pytestmark = pytest.mark.integration

TWO = "nodes: [spark1, spark2]\nreplicas: 2\n"
KILLS = 3
"""At most: all streams of a group may be between two answers at that moment."""
TOKENS = 450
"""Of each answer, nearly the whole context: a group that generates by its last report probably does when it is killed."""


def groups(fleet):
    return fleet.deployment()["groups"]


def serve_two(fleet, more=""):
    fleet.serve(fleet.anew(fleet.spec(TWO + more).replace("concurrency: 4", "concurrency: 8")))


def kill_one_under_load(fleet):
    """Clients that ask both groups, one of which is killed; they end once both kinds of answers were seen since."""
    fleet.until(lambda: [one["phase"] for one in groups(fleet)] == ["ready"] * 2)
    with Asking(fleet, "tiny", streams=6, tokens=TOKENS) as asking:
        fleet.until(lambda: asking.ends["whole"] > 6, timeout=60)
        fleet.until(lambda: all(one["running"] for one in groups(fleet)), timeout=30)
        rank = groups(fleet)[0]["ranks"][0]
        fleet.lab.exec(rank["node"], ["kill", "-9", str(rank["pid"])])
        killed = time.time()
        fleet.until(lambda: asking.whole_since(killed) > 6, timeout=60)
    return asking


def continued(fleet):
    """Number of streams that went on."""
    page = fleet.lab.exec(
        fleet.lab.nodes[0].name, ["curl", "-s", fleet.status()["gateways"][0]["metrics_url"]]
    )
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.stdout.splitlines()
        if line.startswith("sparkfleet_replays_total") and 'outcome="continued"' in line
    )


@pytest.mark.full
def test_greedy_streams_of_a_killed_group_end_whole_on_the_other(pair):
    """`Asking` asks with temperature 0 and counts the tokens of each answer: whole means that none is missing.

    Not for any engine: the ids of tokens are vLLM's own.
    """
    serve_two(pair, "replay: true\n")
    for _ in range(KILLS):
        asking = kill_one_under_load(pair)
        assert set(asking.ends) == {"whole"}, [one for one in asking.answers if one["end"] != "whole"]
        if continued(pair):
            break
    else:
        pytest.fail("the kills met no stream: nothing was proved")


@pytest.mark.full
@pytest.mark.any_engine
def test_without_replay_the_same_kill_ends_them_with_an_error(pair):
    serve_two(pair)
    for _ in range(KILLS):
        asking = kill_one_under_load(pair)
        assert asking.dishonest == []
        if asking.ends["told"]:
            break
    else:
        pytest.fail("the kills met no stream: nothing was proved")
