"""The start of a self-test; the whole of it runs in the lab (tests/integration/test_selftest.py)."""

from types import SimpleNamespace

import pytest

from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet import selftest as steps
from sparkfleet.fleet.selftest import selftest
from sparkfleet.fleet.selftest_verdicts import NAME, StepVerdict
from sparkfleet.fleet.session import Session


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
