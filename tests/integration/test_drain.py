"""A node is drained under load: what runs on it moves, nothing is started there, and no request fails."""

import asyncio
import time

import pytest
from asking import Asking
from pair_fleet import TINY

from sparkfleet.fleet.session import Session

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

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
