"""Lines of `sparkfleet apply` around the plan and the start."""

from types import SimpleNamespace

import pytest
from open_client import OpenClient

from sparkfleet.cli.deployment import apply
from sparkfleet.cli.planning.next_commands import Variants
from sparkfleet.fleet.deployments import watch
from sparkfleet.fleet.deployments.apply import AppliedDeployments


@pytest.fixture
def applied(sparkfleet, monkeypatch, tmp_path):
    """applied(state, *options, deployment=…) → (exit code, standard output) of an apply that ends in this state."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")

    def run(state, *options, deployment="name: m\nmodel: Qwen/Qwen3-32B\n"):
        (tmp_path / "m.yaml").write_text(deployment)
        ended = SimpleNamespace(
            name="m", state=state, detail="no rung", plan=None, groups=(), passed=(), instead=None
        )
        address = SimpleNamespace(is_private=False, entries=(), endpoint="http://spark1:8000/v1")

        async def prepared(*_, **__):
            planned = SimpleNamespace(checkpoints={}, require_feasible=lambda: None)
            return SimpleNamespace(planned=planned, gateway="", changes_nothing=False)

        async def carried_out(*_, **__):
            return AppliedDeployments(SimpleNamespace(address=address), {"m": ended}, {})

        monkeypatch.setattr(apply, "prepare_apply", prepared)
        monkeypatch.setattr(apply, "print_plans", lambda planned: Variants())
        monkeypatch.setattr(apply, "carry_out", carried_out)
        code, out, _ = sparkfleet("apply", "m.yaml", "--yes", *options)
        return code, out.splitlines()

    return run


KEPT = {"m": "starting", "ready": "ready"}


@pytest.mark.parametrize(
    ("options", "ends", "code", "lines"),
    [
        ((), "failed", 1, ["No change. Endpoint: http://spark1:8000/v1"]),
        ((), "unloaded", 1, ["No change. Endpoint: http://spark1:8000/v1"]),
        ((), "ready", 0, ["No change. Endpoint: http://spark1:8000/v1"]),
        (
            ("--no-wait",),
            "ready",
            0,
            [
                "Not ready yet: m. `sparkfleet status` shows the progress.",
                "No change. Endpoint: http://spark1:8000/v1",
            ],
        ),
    ],
)
def test_a_second_apply_waits_for_the_start_of_the_first(
    sparkfleet, monkeypatch, tmp_path, options, ends, code, lines
):
    """After Ctrl-C, or beside another apply, it ended at once with "No change" and the endpoint."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    (tmp_path / "m.yaml").write_text("name: m\nmodel: Qwen/Qwen3-32B\n")
    asked = []

    class Client(OpenClient):
        address = SimpleNamespace(is_private=False, entries=(), endpoint="http://spark1:8000/v1")

    async def prepared(*_, **__):
        status = SimpleNamespace(
            last_event=7,
            deployments=tuple(SimpleNamespace(name=n, state=s, generation=3) for n, s in KEPT.items()),
        )
        kept = tuple(SimpleNamespace(spec=SimpleNamespace(name=name)) for name in KEPT)
        decision = SimpleNamespace(planned=kept)
        planned = SimpleNamespace(
            checkpoints={}, require_feasible=lambda: None, client=Client(), status=status, decision=decision
        )
        return SimpleNamespace(planned=planned, gateway="", changes_nothing=True)

    async def settled(client, wanted, after, on_event):
        asked.append((wanted, after))
        instead = 1 if ends == "unloaded" else None  # on demand: the generation before serves
        one = SimpleNamespace(
            name="m", state=ends, detail="no rung", plan=None, groups=(), passed=(), instead=instead
        )
        return {"m": one}

    async def no_key(*_):
        return ()

    monkeypatch.setattr(apply, "prepare_apply", prepared)
    monkeypatch.setattr(apply, "print_plans", lambda planned: Variants())
    monkeypatch.setattr(apply, "create_first_key", no_key)
    monkeypatch.setattr(watch, "until_settled", settled)
    done, out, _ = sparkfleet("apply", "m.yaml", "--yes", *options)
    assert (done, out.splitlines()) == (code, lines)
    assert asked == ([] if options else [({"m": 3}, 7)])


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
