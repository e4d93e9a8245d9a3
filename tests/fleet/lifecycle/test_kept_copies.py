"""Copies of the store on other nodes, as the command line reads them."""

import pytest
import statuses
from open_client import OpenClient

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.errors import UnreachableError
from sparkfleet.fleet.lifecycle import kept_copies as module
from sparkfleet.fleet.lifecycle.kept_copies import CopyElsewhere, copies_elsewhere
from sparkfleet.specs.load import parse_inventory

KEY = "SHA256:" + 43 * "A"
OLD = KeptCopy(name="20261201T003000123456Z-change.db", bytes=7, since_s=60.0)
NEW = KeptCopy(name="20261201T003500123456Z-asked.db", bytes=9, since_s=1.0)


class Session(OpenClient):
    """Two nodes beside the head. Each reading of the status is the next one of `answers`, the last one for ever."""

    def __init__(self, *answers):
        self.answers, self.read = list(answers), 0
        nodes = "".join(
            f"  {name}: {{address: 10.0.0.{end}, user: u, host_key: '{KEY}'}}\n"
            for end, name in ((2, "b"), (3, "c"))
        )
        self.inventory = parse_inventory(f"fleet: home\nhead: a\nnodes:\n  a: {{address: local}}\n{nodes}")

    async def find_controller(self):
        if self.answers[0] is None:
            return None
        if isinstance(self.answers[0], Exception):
            raise self.answers[0]
        return self

    async def fleet(self):
        self.read += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def all_events(self, name=None, after=0):
        return []


def status(uncopied=None, **kept):
    nodes = (NodeReport(name=name, joined=True, boot="x", kept_copy=copy) for name, copy in kept.items())
    return statuses.fleet(nodes=tuple(nodes), uncopied=uncopied or {})


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.0)


async def test_a_copy_that_was_just_made_is_waited_for():
    session = Session(
        status({"b": "it is about to be sent"}, a=None, b=OLD, c=None),
        status({}, a=None, b=OLD, c=NEW),
        status({}, a=None, b=NEW, c=NEW),
    )
    found = await copies_elsewhere(session, NEW.name)
    assert found == tuple(CopyElsewhere(node=name, copy=NEW, trouble="", known=True) for name in ("b", "c"))
    assert session.read == 3


async def test_a_node_that_refuses_it_is_named_after_the_time_for_it(monkeypatch):
    monkeypatch.setattr(module, "ARRIVES_S", 0.0)
    b, c = await copies_elsewhere(Session(status({"b": "its disk is full"}, a=None, b=OLD, c=NEW)), NEW.name)
    assert b == CopyElsewhere(node="b", copy=OLD, trouble="its disk is full", known=True)
    assert c.trouble == ""


async def test_one_that_does_not_answer_or_is_not_in_the_fleet_is_not_waited_for():
    silent = NodeReport(name="b", joined=True)
    session = Session(statuses.fleet(nodes=(silent,), uncopied={"b": "it does not answer"}))
    b, c = await copies_elsewhere(session, NEW.name)
    assert b == CopyElsewhere(node="b", copy=None, trouble="it does not answer", known=False)
    assert (c.known, c.trouble) == (
        False,
        "the controller does not know it: `sparkfleet up` takes it into the fleet",
    )


async def test_a_controller_that_has_sent_nothing_yet():
    b, _ = await copies_elsewhere(Session(status(a=None, b=None, c=None)))
    assert (b.copy, b.trouble, b.known) == (None, "nothing was sent to it yet", True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "the fleet is down"), (UnreachableError("a cannot be reached."), "a cannot be reached.")],
)
async def test_without_a_controller_nothing_is_known(answer, words):
    found = await copies_elsewhere(Session(answer), NEW.name)
    assert {(one.copy, one.trouble, one.known) for one in found} == {(None, words, False)}


async def test_a_fleet_of_one_node_has_no_other():
    session = Session(None)
    session.inventory = parse_inventory("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    assert await copies_elsewhere(session) == ()
