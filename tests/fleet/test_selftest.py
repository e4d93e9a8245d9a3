"""The start of a self-test; the whole of it runs in the lab (tests/integration/test_selftest.py)."""

import time
from pathlib import Path

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fabric.link_measurements import (
    BY_RDMA,
    LinkMeasurement,
    RailMeasurement,
    TransportProof,
    save_measurements,
)
from sparkfleet.fleet import selftest as module
from sparkfleet.fleet.selftest import selftest
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import FleetPaths


async def test_a_node_that_does_not_exist_is_refused(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
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
        (old,), (now,) = module._measured(session), module._measured(session, since=time.time() - 5)
        assert module._link_step(old, old, session).verdict == "ok"
        step = module._link_step(now, old, session)
    assert step.verdict == "skipped"
    assert step.words.startswith("not measured now; the planner uses those of an earlier run: 2")
