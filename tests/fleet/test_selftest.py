"""The start of a self-test; the whole of it runs in the lab (tests/integration/test_selftest.py)."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fabric.link_measurements import (
    BY_RDMA,
    LinkMeasurement,
    RailMeasurement,
    TransportProof,
    save_measurements,
)
from sparkfleet.fleet import selftest as steps
from sparkfleet.fleet.selftest import selftest
from sparkfleet.fleet.selftest_verdicts import NAME, StepVerdict
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def file(tmp_path):
    one = tmp_path / "inventory.yaml"
    one.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    return one


async def test_a_node_that_does_not_exist_is_refused(file):
    async with Session(file) as session:
        with pytest.raises(SpecError, match="moon"):
            async for _ in selftest(session, ["moon"]):
                pass


async def test_a_link_that_this_run_did_not_measure_is_no_ok(tmp_path, monkeypatch):
    """With one node off, the figures of an earlier run were "measured", and ok."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))
    async with Session(Path("docs/examples/inventory-two-sparks.yaml")) as session:
        rails = [
            RailMeasurement(netdev=name, method=BY_RDMA, gb_per_s=12.2, latency_us=1.5) for name in ("a", "b")
        ]
        proof = TransportProof(moved={}, holds=True, said="")
        nodes = tuple(session.inventory.nodes)
        one = LinkMeasurement(nodes=nodes, rails=tuple(rails), proof=proof, when=time.time() - 60)
        save_measurements(FleetPaths.default(session.inventory.fleet).links, [one])
        (old,), (now,) = steps._measured(session), steps._measured(session, since=time.time() - 5)
        assert steps._link_step(old, old, session).verdict == "ok"
        step = steps._link_step(now, old, session)
    assert step.verdict == "skipped"
    assert step.words.startswith("not measured now; the planner uses those of an earlier run: 2")


async def test_a_deployment_that_an_interrupted_one_left_is_in_the_way_of_engines_only(file, monkeypatch):
    async def state(_):
        left = SimpleNamespace(deployments=[SimpleNamespace(name=NAME)])
        return SimpleNamespace(trouble=None, status=left, condition=None)

    async def facts(_session, _node):
        return StepVerdict(True, "read")

    monkeypatch.setattr(steps, "fleet_state", state)
    monkeypatch.setattr(steps, "_facts", facts)
    async with Session(file) as session:
        with pytest.raises(ControlError, match=NAME) as refused:
            await anext(selftest(session, []))
        assert f"sparkfleet delete {NAME}" in refused.value.do
        step = await anext(selftest(session, [], engines=False))
    assert (step.name, step.verdict) == ("a: facts", "ok")
