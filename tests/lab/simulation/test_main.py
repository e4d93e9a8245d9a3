"""The command of the simulation: a seed that fails is printed with a command that fails again in the same step."""

import re
import shlex

import pytest

from sparkfleet.controlplane import gateway_control
from sparkfleet.lab.simulation import __main__ as command

GIVEN = (
    "--hours",
    "1.0000001",
    "--nodes",
    "2",
    "--fault-every",
    "59.12345678",
    "--drain-every",
    "3600.12345678",
    "--race-every",
    "90000.12345678",
    "--demand-every",
    "inf",
)
"""Figures with more digits than a short form of them has."""


@pytest.fixture
def reports(monkeypatch):
    """Reports of the runs that a command made."""
    made = []

    def kept(*args, **fields):
        made.append(run(*args, **fields))
        return made[-1]

    run = command.simulate
    monkeypatch.setattr(command, "simulate", kept)
    return made


def test_the_printed_replay_of_a_seed_fails_in_the_same_step(reports, monkeypatch, capsys):
    async def leave(self, group):
        self._fleet.retire(group)
        return True

    monkeypatch.setattr(gateway_control.GatewayControl, "leave", leave)
    assert command.main(["--seed", "5", "--runs", "2", "--jobs", "1", *GIVEN]) == 1
    out = capsys.readouterr().out
    well, failed = reports
    assert (well.violations, failed.seed) == ([], 6)
    assert failed.violations[0] in out
    assert "1 of 2 runs failed" in out
    (line,) = (line for line in out.splitlines() if line.startswith("replay: "))
    start, _, argv = line.partition("sparkfleet.lab.simulation ")
    assert start == "replay: python -m "
    assert set(GIVEN) <= set(shlex.split(argv)), "rounded, they give another run"
    assert command.main(shlex.split(argv)) == 1
    replayed = reports[-1]
    assert (replayed.rounds, replayed.violations, replayed.log) == (
        failed.rounds,
        failed.violations,
        failed.log,
    )
    assert "\n".join(failed.log) in capsys.readouterr().out, "--log prints the run"


def test_runs_that_hold_end_with_0_and_no_replay(reports, capsys):
    assert (
        command.main(
            ["--seed", "2", "--runs", "1", "--hours", "0.05", "--nodes", "1", "--demand-every", "1500"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "replay" not in out
    assert f"{reports[0].faults.total()} faults, 0 of 1 runs failed; " in out
    assert re.search(r"; \d+\.\d min, \d+ fleet-hours a minute$", out)
