from dataclasses import dataclass, field

import pytest
from open_client import OpenClient

from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.lifecycle.internal_secrets import finish_change, with_former_tokens
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.specs.fields import FrozenDict
from sparkfleet.specs.load import parse_inventory


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


class Changing(OpenClient):
    """A session with an idle fleet of which a change is under way; `b` is lost after it has given `answers` answers."""

    inventory = parse_inventory(
        "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
        '  b: {address: 10.0.0.2, user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}\n'
    )

    def __init__(self, answers):
        self.programs = self
        self.secrets = dict.fromkeys("ab", TokenSecrets(current="c" * 64, former=("f" * 64,)))
        self.answers = answers

    async def fleet(self):
        return Status()

    async def secrets_step(self, node, request):
        if node == "b":
            if not self.answers:
                raise NodeError("b: the connection was lost.")
            self.answers -= 1
        if request.step == "finish":
            self.secrets[node] = self.secrets[node].finished()
        if request.step == "take":
            self.secrets[node] = TokenSecrets.parse(request.engine_tokens)
        has = self.secrets[node]
        return {"engine_tokens": has.text(), "current": "now", "under_way": bool(has.former)}


async def test_a_change_of_which_a_node_is_lost_in_the_end_can_be_finished_later():
    """The head had dropped the former secrets, which that node kept: no command took them away."""
    session = Changing(answers=1)
    with pytest.raises(ControlError, match="not reached: b") as found:
        await finish_change(session)
    assert session.secrets["a"].former, found.value.means
    assert "not reached: b: the connection was lost." in found.value.what, "the node once"
    assert "delete what is gone for good from the inventory" in found.value.do
    session.answers = 9
    await finish_change(session)
    assert not any(one.former for one in session.secrets.values())


async def test_a_node_that_is_gone_for_good_does_not_keep_a_change_open():
    """To bring it back was the only remedy, for one whose board is broken, too."""
    session = Changing(answers=0)
    session.inventory = session.inventory.model_copy(
        update={"nodes": FrozenDict({"a": session.inventory.nodes["a"]})}
    )
    await finish_change(session)
    assert not session.secrets["a"].former
