"""Moves of the head that are refused, undone, or fail; `test_moved_inventory.py` has the inventory afterwards."""

import pytest

from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.lifecycle.move_head import (
    HELD_S,
    move_head,
    plan_move,
    undo_move,
)
from sparkfleet.fleet.lifecycle.move_plan import MovePlan
from sparkfleet.fleet.session import Session
from sparkfleet.specs.load import parse_inventory

INVENTORY_OF_TWO = parse_inventory(
    "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
    '  b: {address: 10.0.0.2, user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}\n'
)


@pytest.mark.parametrize(("node", "words"), [("this", "this is the head already"), ("x", 'unknown node "x"')])
async def test_a_move_to_nowhere_is_refused(tmp_path, node, words):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        with pytest.raises(SpecError, match=words):
            await plan_move(session, node)


class Undone:
    """A session whose nodes undo a move at once, and whose controller, if any, waits for a moment longer."""

    def __init__(self, client):
        self.inventory = INVENTORY_OF_TWO
        self.programs = self.lifecycle = self
        self.client, self.steps = client, []

    async def move_step(self, name, request):
        self.steps.append((request.step, name))

    async def pythons(self, on_event):
        raise ControlError("The fleet did not come up within 180 s.", do="Look at the logs.")

    async def find_controller(self):
        return self.client

    async def until_joined(self, client, on_event, held_s):
        assert (client, held_s) == (self.client, HELD_S)
        self.steps.append(("joined", ""))


@pytest.mark.parametrize(("client", "last"), [(object(), [("joined", "")]), (None, [])])
async def test_an_undone_move_is_over_once_the_old_head_works(client, last):
    session = Undone(client)
    await undo_move(session, "b")
    assert session.steps == [("cancel", "b"), ("cancel", "a"), *last]


async def test_a_move_that_fails_names_the_node_that_is_the_head():
    """Its owner read that the fleet did not come up, and not that the old head served on."""
    session = Undone(None)
    with pytest.raises(ControlError) as failed:
        await move_head(
            session, MovePlan("a", "b", live=True, store="store", settled=False, host="127.0.0.1")
        )
    assert session.steps == [("cancel", "b"), ("cancel", "a")]
    assert str(failed.value).splitlines() == [
        "The fleet did not come up within 180 s.",
        "The move was undone: the head is a, as before, and groups went on.",
        "Look at the logs.",
    ]


async def test_a_move_to_a_node_of_no_inventory_cannot_be_undone():
    """It ended with a traceback."""
    session = Undone(None)
    with pytest.raises(SpecError, match='unknown node "x"'):
        await undo_move(session, "x")
    assert session.steps == []
