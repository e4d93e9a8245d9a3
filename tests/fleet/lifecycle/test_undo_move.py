"""`move-head --cancel`: it ends with the old head at work, whichever of the other nodes is reached."""

import pytest
from control_values import inventory

from sparkfleet.errors import ControlError, NodeError, SpecError
from sparkfleet.fleet.lifecycle.undo_move import HELD_S, undo_move, unreached_lines


class Nodes:
    """A session whose nodes answer `cancel`, and whose controller, if any, waits for a moment longer.

    Args:
        client: of the controller.
        answers: of nodes that do not just end the move: an error, or an answer.
    """

    def __init__(self, client=None, **answers):
        self.inventory = inventory("a", "b", "c")
        self.programs = self.lifecycle = self
        self.client, self.answers, self.steps, self.certain = client, answers, [], {}

    async def move_step(self, name, request):
        assert (request.step, request.move.token) == ("cancel", "")
        self.steps.append(name)
        self.certain[name] = request.certain
        answer = self.answers.get(name, {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find_controller(self):
        return self.client

    async def until_joined(self, client, on_event, held_s, *, without):
        assert (client, held_s) == (self.client, HELD_S)
        self.steps.append(("joined without", *without))


@pytest.mark.parametrize(("client", "last"), [(object(), [("joined without",)]), (None, [])])
async def test_an_undone_move_is_over_once_the_old_head_works(client, last):
    nodes = Nodes(client)
    assert await undo_move(nodes, "b") == ()
    assert nodes.steps == ["b", "a", "c", *last]
    assert nodes.certain["a"]


@pytest.mark.parametrize("gone", ["b", "c"])
async def test_a_node_that_is_not_reached_is_left_out(gone):
    """`--cancel` ended with the error of the new head, and the old one waited on."""
    nodes = Nodes(object(), **{gone: NodeError(f"{gone} cannot be reached")})
    assert await undo_move(nodes, "b") == (gone,)
    assert nodes.steps == ["b", "a", "c", ("joined without", gone)]
    assert nodes.certain["a"] is (gone != "b"), "the old head knows if the other one may have taken over"


@pytest.mark.parametrize("error", [NodeError("a cannot be reached"), ControlError("it may be the head")])
async def test_an_old_head_that_is_not_released_is_an_error_once_the_others_are(error):
    nodes = Nodes(object(), a=error)
    with pytest.raises(type(error), match=error.what):
        await undo_move(nodes, "b")
    assert nodes.steps == ["b", "a", "c"]


async def test_a_new_head_that_has_taken_over_is_the_head():
    """The old head was released beside it."""
    nodes = Nodes(object(), b={"head": True})
    with pytest.raises(ControlError, match="b is the head already") as failed:
        await undo_move(nodes, "b")
    assert failed.value.do == "`sparkfleet move-head b` completes it."
    assert nodes.steps == ["b"]


@pytest.mark.parametrize(("node", "words"), [("x", 'unknown node "x"'), ("a", "a is the head already")])
async def test_a_move_to_a_node_of_no_inventory_or_to_the_head_cannot_be_undone(node, words):
    nodes = Nodes()
    with pytest.raises(SpecError, match=words):
        await undo_move(nodes, node)
    assert nodes.steps == []


def test_what_goes_on_by_itself_on_nodes_that_were_not_reached_is_printed():
    assert [*unreached_lines("b", ())] == []
    first, second = unreached_lines("b", ("b", "c"))
    assert first.startswith("b was not reached. It has not taken over")
    assert second == "c: not reached; Ray that the move has stopped there continues within a minute."
