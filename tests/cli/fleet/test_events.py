"""`sparkfleet events` over a fleet with 60 events, one an hour."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from open_client import OpenClient
from typer.testing import CliRunner

from sparkfleet.cli import times
from sparkfleet.cli.fleet import events as verb
from sparkfleet.controlplane.state.event import Event
from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments.status import read_events

NOW = 1_000_000.0


class Fleet(OpenClient):
    """A session and its client."""

    def __init__(self) -> None:
        self.reported: list[Any] = []

    def report(self, event: Any) -> None:
        self.reported.append(event)

    async def fleet(self) -> Any:
        tiny = SimpleNamespace(name="tiny")
        return SimpleNamespace(
            last_event=60,
            named=lambda name: name == "tiny" or None,
            deployments=(tiny,),
            nodes=(SimpleNamespace(name="quiet"),),
        )

    async def all_events(self, name: str | None) -> list[Event]:
        about = {"deployment": "", "generation": 0, "subject": "a", "kind": "node"}
        return [
            Event(id=number, at=NOW - (60 - number) * 3600, message=f"{number}", **about)
            for number in range(1, 61)
        ]


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(verb, "open_session", lambda _: Fleet())
    monkeypatch.setattr(times.time, "time", lambda: NOW)
    app = typer.Typer()
    app.command()(verb.events)
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "first", "count"),
    [
        ((), 11, 50),
        (("-n", "2"), 59, 2),
        (("--since", "2h"), 58, 3),
        (("--since", "3d"), 1, 60),
        (("--since", "2h", "-n", "1"), 60, 1),
        (("--since", "1970-01-12T00:00Z"), 47, 14),
    ],
)
def test_events_are_the_last_fifty_or_those_since_a_time(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], first: int, count: int
) -> None:
    shown = json.loads(invoke(monkeypatch, "--json", *arguments).stdout)["events"]
    assert (shown[0]["id"], shown[-1]["id"], len(shown)) == (first, 60, count)


class Busy(Fleet):
    """A fleet with events of a deployment, its group, a node and a key; its controller filters by deployment only."""

    async def all_events(self, name: str | None) -> list[Event]:
        found = (("tiny", "tiny/g1/0"), ("tiny", "tiny/g2/0"), ("", "spark1"), ("", "laptop"), ("old", "old"))
        return [
            Event(id=number, at=NOW, deployment=one, generation=0, subject=subject, kind="node", message="x")
            for number, (one, subject) in enumerate(found)
            if name in {None, one}
        ]


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("tiny", [0, 1]),
        ("tiny/g1/0", [0]),
        ("spark1", [2]),
        ("laptop", [3]),
        ("old", [4]),  # deleted
        ("quiet", []),  # a deployment or a node without one
    ],
)
def test_a_name_is_what_the_lines_of_events_begin_with(
    monkeypatch: pytest.MonkeyPatch, name: str, ids: list[int]
) -> None:
    """Of a node, a group and a key there were no events."""
    monkeypatch.setattr(f"{__name__}.Fleet", Busy)
    shown = json.loads(invoke(monkeypatch, name, "--json").stdout)["events"]
    assert [one["id"] for one in shown] == ids


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("Tiny", "`sparkfleet events tiny` prints those of tiny."),
        ("tinny", "Names: quiet, tiny; groups, keys"),
    ],
)
def test_a_name_that_nothing_has_is_an_error_with_the_names(
    monkeypatch: pytest.MonkeyPatch, name: str, do: str
) -> None:
    """`No events of Tiny.` and exit code 0: as if nothing had happened to `tiny`."""
    monkeypatch.setattr(f"{__name__}.Fleet", Busy)
    with pytest.raises(ControlError, match=f'There is no event of "{name}"') as refused:
        asyncio.run(read_events(Fleet(), name, None))
    assert refused.value.do.startswith(do)


def test_a_name_that_nothing_has_yet_is_followed_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """`events -f tinny` waited without a word for what never comes."""
    monkeypatch.setattr(f"{__name__}.Fleet", Busy)
    for name, lines in (("tinny", 1), ("tiny", 0), ("quiet", 0)):
        fleet = Fleet()
        asyncio.run(read_events(fleet, name, None, yet_to_come=True))
        assert len(fleet.reported) == lines
    fleet = Fleet()
    assert asyncio.run(read_events(fleet, "tinny", None, yet_to_come=True)) == ((), 60)
    assert fleet.reported[0].line == (
        'There is no event of "tinny", and no deployment or node has this name. Its events are printed once it has some.'
        " Names: quiet, tiny; groups, keys and gateways have them, too. Without a name all are printed."
    )


def test_none_since_a_time_has_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.console, "width", 200)
    shown = invoke(monkeypatch, "--since", "2027-01-31").stdout
    assert "No events since 2027-01-31 00:00:00." in shown
