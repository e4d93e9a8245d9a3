"""Lines of `sparkfleet apply` around the plan and the start."""

from types import SimpleNamespace

import pytest

from sparkfleet.cli.deployment import apply
from sparkfleet.fleet.deployments.apply import AppliedDeployments


@pytest.fixture
def applied(sparkfleet, monkeypatch, tmp_path):
    """applied(state, *options, deployment=…) → (exit code, standard output) of an apply that ends in this state."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")

    def run(state, *options, deployment="name: m\nmodel: Qwen/Qwen3-32B\n"):
        (tmp_path / "m.yaml").write_text(deployment)
        ended = SimpleNamespace(name="m", state=state, detail="no rung", plan=None, groups=(), passed=())
        address = SimpleNamespace(is_private=False, entries=(), endpoint="http://spark1:8000/v1")

        async def prepared(*_, **__):
            planned = SimpleNamespace(checkpoints={}, require_feasible=lambda: None)
            return SimpleNamespace(planned=planned, gateway="", changes_nothing=False)

        async def carried_out(*_, **__):
            return AppliedDeployments(SimpleNamespace(address=address), {"m": ended}, {})

        monkeypatch.setattr(apply, "prepare_apply", prepared)
        monkeypatch.setattr(apply, "print_plans", lambda planned: None)
        monkeypatch.setattr(apply, "carry_out", carried_out)
        code, out, _ = sparkfleet("apply", "m.yaml", "--yes", *options)
        return code, out.splitlines()

    return run


def test_what_serves_has_the_commands_that_use_it(applied):
    code, out = applied("ready")
    assert code == 0
    assert out[-2:] == [
        "Endpoint: http://spark1:8000/v1",
        'Next: `sparkfleet ask m "…"`; `sparkfleet connect CLIENT m` configures a client.',
    ]


@pytest.mark.parametrize(
    ("state", "options", "deployment"),
    [
        ("failed", (), "name: m\nmodel: Qwen/Qwen3-32B\n"),
        ("starting", ("--no-wait",), "name: m\nmodel: Qwen/Qwen3-32B\n"),
        (
            "ready",
            (),
            "name: m\nmodel: x/y\nengine: custom\nimage: localhost/x:1\nmemory: 1 GiB\nport: 8080\n",
        ),
    ],
    ids=["failed", "not awaited", "custom"],
)
def test_what_cannot_be_asked_has_none(applied, state, options, deployment):
    code, out = applied(state, *options, deployment=deployment)
    assert code == (1 if state == "failed" else 0)
    assert out[-1] == "Endpoint: http://spark1:8000/v1"
