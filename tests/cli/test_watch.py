"""Waiting for deployments: it ends with what became of them, whoever else has a say."""

import pytest

from sparkfleet.cli.watch import Progress, until_settled
from sparkfleet.control.status import DeploymentStatus, FleetStatus
from sparkfleet.control.store import Event
from sparkfleet.errors import ControlError


class Told:
    """A client of a controller that answers these, the last for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def events(self, after, deployment=None, wait_s=0):
        return []

    async def fleet(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def fleet(**states):
    return FleetStatus(
        fleet="home",
        sparkfleet="0",
        endpoint="",
        gateways=(),
        last_event=0,
        deployments=tuple(
            DeploymentStatus(
                name=name, generation=1, state=state, detail="", who="", since=0.0, plan=None, groups=()
            )
            for name, state in states.items()
        ),
    )


async def test_it_ends_when_all_are_ready_or_have_failed():
    client = Told(fleet(a="starting", b="failed"), fleet(a="ready", b="failed"))
    settled = await until_settled(client, {"a": 1, "b": 1}, 0, Progress())
    assert {name: one.state for name, one in settled.items()} == {"a": "ready", "b": "failed"}


@pytest.mark.parametrize("after", [{}, {"a": "stopping"}])
async def test_what_somebody_else_deletes_is_not_waited_for_for_ever(after):
    client = Told(fleet(a="starting"), fleet(**after))
    with pytest.raises(ControlError, match="a: somebody deleted it"):
        await until_settled(client, {"a": 1}, 0, Progress())


def test_quiet_shows_nothing_however_long_it_takes(monkeypatch, capsys):
    monkeypatch.setattr("sparkfleet.cli.watch.QUIET_S", 0.0)
    event = Event(id=1, at=0.0, deployment="a", generation=1, subject="", kind="ready", message="well")
    for quiet, shown in ((True, ""), (False, "stopping")):
        progress = Progress(quiet=quiet)
        progress.passing("stopping")
        progress.event(event)
        progress.done()
        out = capsys.readouterr().out
        assert out.startswith(shown)
        assert bool(out) == (not quiet)
