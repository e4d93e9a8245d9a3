"""A node is drained under load: what runs on it moves, nothing is started there, and no request fails."""

import asyncio
import time

import pytest
from asking import Asking
from pair_fleet import TINY

from sparkfleet.fleet.session import Session

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

TOKENS = 120
"""Of each answer; a probe of an idle engine has one."""
OTHER = TINY.replace("name: tiny", "name: other")


def nodes_of(fleet, name):
    return {
        rank["node"]
        for one in fleet.deployments()
        if one["name"] == name
        for g in one["groups"]
        for rank in g["ranks"]
    }


@pytest.mark.full
def test_a_drained_node_loses_its_groups_without_a_failed_request_and_gets_no_other(pair):
    pair.serve(pair.spec("nodes: [spark1, spark2]\nreplicas: 1\n"))
    (node,) = nodes_of(pair, "tiny")
    (other,) = {"spark1", "spark2"} - {node}
    with Asking(pair, "tiny") as asking:
        pair.until(lambda: asking.ends["whole"], timeout=60)
        out = pair.ok("drain", node, "--yes")
        again = time.time()
        pair.until(lambda: asking.whole_since(again), timeout=60)
    assert set(asking.ends) == {"whole"}, asking.answers
    assert f"{node} is drained: nothing runs on it. `sparkfleet undrain {node}`" in out
    assert nodes_of(pair, "tiny") == {other}
    assert pair.engines(node) == {}
    try:
        (line,) = (one for one in pair.ok("status").splitlines() if one.startswith(f"  {node}"))
        assert line.endswith(" · drained")
        code, out, _ = pair.run(
            "plan", pair.write("pinned.yaml", pair.spec(f"nodes: [{node}]\n", text=OTHER))
        )
        assert code == 3
        assert f"{node}: drained; `sparkfleet undrain {node}` ends that" in " ".join(out.split())
        pair.apply(pair.spec(text=OTHER), name="other.yaml")
        assert nodes_of(pair, "other") == {other}
        assert f"without {node}: drained" in pair.run("plan", str(pair.directory / "other.yaml"))[1]
        code, _, err = pair.run("drain", other, "--yes")
        assert code == 3
        assert "No other node is left for other, tiny" in err
        assert f"No change: {node} is drained" in pair.ok("drain", node, "--yes")
    finally:
        pair.ok("undrain", node)
    code, _, err = pair.run("undrain", node)
    assert code == 1
    assert f"{node} is not drained" in err


async def mark_drained(pair, node):
    async with Session(pair.directory / "inventory.yaml") as session, await session.controller() as client:
        await client.drain(node, "a test")


@pytest.mark.full
def test_an_engine_that_ends_on_a_drained_node_is_not_started_there_again(pair):
    """Serve started it again at once, on a node that somebody was about to switch off."""
    pair.serve(pair.spec("nodes: [spark2]\n"))
    engine = pair.group()["ranks"][0]["pid"]
    asyncio.run(mark_drained(pair, "spark2"))  # as a drain whose deployment could not be moved
    try:
        assert pair.group()["ranks"][0]["pid"] == engine, "what serves goes on"
        pair.lab.exec("spark2", ["kill", "-9", str(engine)])
        why = "it starts after `sparkfleet undrain spark2`"
        found = pair.until(lambda: why in pair.deployment()["detail"] and pair.deployment(), timeout=15)
        assert found["state"] == "failed"
        assert pair.group()["phase"] == "barred"
        assert pair.engines("spark2") == {}
        assert why in " ".join(pair.ok("status").split())
    finally:
        pair.ok("undrain", "spark2")
    pair.until(pair.is_ready, timeout=30)
    assert pair.group()["ranks"][0]["pid"] != engine


def controller_of(fleet):
    """Process id of the controller's actor, on the head."""
    listed = fleet.listed(fleet.lab.nodes[0].name)
    (pid,) = (pid for pid, words in listed.items() if "ray::ControllerActor" in words)
    return pid


@pytest.mark.full
def test_a_drained_group_finishes_its_streams_and_gets_none_until_it_is_undrained(pair):
    """Two groups under load: one is drained and loses no stream, keeps its engine, and stays so over a controller's end."""
    pair.serve(pair.spec("nodes: [spark1, spark2]\nreplicas: 2\n"))
    names = [f"tiny/g{one['generation']}/{one['replica']}" for one in pair.deployment()["groups"]]
    assert len(names) == 2, pair.status()
    pids = {one["ranks"][0]["pid"] for one in pair.deployment()["groups"]}

    def of(name, field):
        (found,) = (
            one
            for one in pair.deployment()["groups"]
            if f"tiny/g{one['generation']}/{one['replica']}" == name
        )
        return found[field]

    with Asking(pair, "tiny", streams=4, tokens=TOKENS) as asking:
        pair.until(lambda: asking.ends["whole"] > 4, timeout=60)
        out = pair.ok("drain", names[0], "--yes")
        assert f"{names[0]} is drained: no request runs on it" in out
        counted = of(names[0], "tokens")
        again = time.time()
        pair.until(lambda: asking.whole_since(again) > 4, timeout=60)
        pair.lab.exec(pair.lab.nodes[0].name, ["kill", "-9", str(controller_of(pair))])
        pair.until(lambda: pair.run("status", "--json")[0] == 0 and pair.is_ready(), timeout=90)
        later = time.time()
        pair.until(lambda: asking.whole_since(later) > 4, timeout=60)
        assert [one["replica"] for one in pair.status()["drained_groups"]] == [int(names[0][-1])]
        assert of(names[0], "running") == 0
        assert of(names[0], "tokens") - counted < TOKENS, "it got a request"
        assert "drained: no new requests" in pair.ok("status")
        pair.ok("undrain", names[0])
        pair.until(lambda: of(names[0], "tokens") - counted >= TOKENS, timeout=60)
    assert set(asking.ends) == {"whole"}, asking.answers
    assert {one["ranks"][0]["pid"] for one in pair.deployment()["groups"]} == pids, "an engine was started"
    code, _, err = pair.run("undrain", names[0])
    assert (code, f"{names[0]} is not drained" in err) == (1, True)
    code, _, err = pair.run("drain", "tiny/g99/0", "--yes")
    assert (code, "There is no group tiny/g99/0" in err) == (1, True)
