from dataclasses import dataclass, field

import pytest

from sparkfleet.fleet.lifecycle.internal_secrets import with_former_tokens
from sparkfleet.group.report import GroupPhase, GroupReport


@dataclass
class Served:
    """A deployment's part of a status."""

    name: str
    groups: tuple[GroupReport, ...]


@dataclass
class Status:
    deployments: list[Served] = field(default_factory=list)


def group(secret, phase=GroupPhase.READY, generation=1):
    return GroupReport(
        deployment="tiny", generation=generation, replica=0, phase=phase, node="a", since=0.0, secret=secret
    )


def former(*groups):
    return with_former_tokens(Status([Served("tiny", groups)]), "now")


def test_an_engine_that_started_before_the_change_has_a_former_token():
    assert former(group("now"), group("before")) == ("tiny",)
    assert former(group("now"), group("now", generation=2)) == ()


def test_an_engine_that_is_about_to_start_counts():
    """Its actor may have read the secrets before they changed."""
    assert former(group("", GroupPhase.STARTING)) == ("tiny",)


@pytest.mark.parametrize("phase", [GroupPhase.FAILED, GroupPhase.STOPPED])
def test_one_that_has_ended_does_not(phase):
    assert former(group("now"), group("before", phase)) == ()


def test_an_old_generation_that_still_drains_counts():
    assert former(group("now", generation=2), group("before", GroupPhase.DRAINING)) == ("tiny",)


def test_an_empty_fleet_has_none():
    assert with_former_tokens(Status(), "now") == ()
