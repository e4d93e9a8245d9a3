"""Lines of `sparkfleet describe` about a deployment on demand."""

from types import SimpleNamespace

import pytest
import statuses

from sparkfleet.cli.deployment import describe
from sparkfleet.controlplane.state.status import OnDemandStatus
from sparkfleet.fleet.deployments.status import DescribedDeployment


@pytest.fixture
def shown(monkeypatch, capsys, tmp_path):
    """Runs the verb on a deployment in some state, and returns its lines."""

    def run(state, **use):
        spec = '{"name": "big", "model": "m", "on_demand": true, "idle": 1800}'
        demand = OnDemandStatus(idle_s=1800, **use)
        one = statuses.deployment(state=state).model_copy(
            update={"on_demand": True, "demand": demand, "spec": spec}
        )

        async def described(session, name):
            return DescribedDeployment(one, ())

        monkeypatch.setattr(describe, "describe_deployment", described)
        fleet = SimpleNamespace(inventory=SimpleNamespace(head="spark1"))
        monkeypatch.setattr(describe, "open_session", lambda inventory: fleet)
        assert describe.describe("big", tmp_path / "inventory.yaml") == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_its_use_is_before_the_rule_of_its_begin_and_end(shown):
    words = shown("unloaded", waits_s=42.0, start_s=95.0)
    use, rule = (
        "on demand a request has waited 42 s; its last start took 1 min 35 s",
        "a request or `sparkfleet load big`",
    )
    assert f"{use} {rule} starts it; it ends after 30 min without a request" in words
    assert "on demand a request or `sparkfleet load big`" in shown("unloaded")


def test_one_that_failed_is_started_by_a_retry_alone(shown):
    words = shown("failed")
    assert "on demand its requests get a 503 until `sparkfleet apply FILE --retry`" in words
    assert "sparkfleet load" not in words
