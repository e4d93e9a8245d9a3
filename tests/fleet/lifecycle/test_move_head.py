"""Moves of the head that are refused, undone, or fail; `test_moved_inventory.py` has the inventory afterwards."""

import asyncio

import pytest
from control_values import inventory

from sparkfleet.errors import ControlError, NodeError, SpecError
from sparkfleet.fleet.lifecycle.move_head import move_head, plan_move
from sparkfleet.fleet.lifecycle.move_plan import MovePlan
from sparkfleet.fleet.session import Session


@pytest.mark.parametrize(("node", "words"), [("this", "this is the head already"), ("x", 'unknown node "x"')])
async def test_a_move_to_nowhere_is_refused(tmp_path, node, words):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        with pytest.raises(SpecError, match=words):
            await plan_move(session, node)


class Nodes:
    """A session with three nodes. Each carries out its steps at once, but for those that are in `broken` or `slow`."""

    def __init__(self):
        self.inventory = inventory("a", "b", "c")
        self.programs = self.lifecycle = self.access = self
        self.channels = dict.fromkeys("abc", self)
        self.steps, self.broken, self.slow = [], {}, {}
        self.stopped, self.waiting = set(), set()
        self.is_settled = False

    async def pythons(self, *_):
        return {}

    async def move_step(self, name, request):
        step = request.step
        self.steps.append((step, name))
        if (name, step) in self.slow:
            await self.slow[name, step].wait()
        if error := self.broken.get((name, step)):
            raise error
        if step in ("out", "in"):
            self.waiting.add(name)
        elif step == "freeze":
            self.stopped.add(name)
        elif step == "cancel":
            if name == "b" and self.is_settled:
                return {"head": True}
            if name == "a" and not request.certain:
                raise ControlError("b is not reached, and it is not known if it is the head.", do="wait")
            self.stopped.discard(name)
            self.waiting.discard(name)
        secrets = dict.fromkeys(("ray_token", "api_token", "engine_secret", "engine_tokens"), "")
        return {"path": "/x", "bytes": 0, "term": 0, "outcome": "/o", "at_its_port": True, **secrets}

    async def write(self, *_):
        pass

    def state_dir(self, _):
        return None

    async def until_up(self, *_):
        pass


UNREACHED = NodeError("b cannot be reached")
MOVE = MovePlan("a", "b", live=True, store="store", settled=False, host="127.0.0.1")


def breaks(nodes, name, *steps, error=UNREACHED):
    nodes.broken |= dict.fromkeys(((name, step) for step in steps), error)


async def refused(nodes):
    """The error of a move, as a person reads it."""
    with pytest.raises((ControlError, NodeError)) as failed:
        await move_head(nodes, MOVE)
    return " ".join(str(failed.value).split())


async def test_a_move_that_has_not_begun_changes_nothing():
    nodes = Nodes()

    async def fails(_):
        raise ControlError("sparkfleet cannot be installed on c.")

    nodes.pythons = fails
    assert await refused(nodes) == "sparkfleet cannot be installed on c. The move has not begun."
    assert nodes.steps == []


async def test_a_move_that_fails_names_the_node_that_is_the_head():
    """Its owner read that the fleet did not come up, and not that the old head served on."""
    nodes = Nodes()

    async def fails(*_):
        raise ControlError("The fleet did not come up within 180 s.", do="Look at the logs.")

    nodes.until_up = fails
    assert await refused(nodes) == (
        "The fleet did not come up within 180 s. The move was undone: the head is a, as before, and groups went on."
        " Look at the logs."
    )
    assert nodes.steps[-2:] == [("cancel", "b"), ("cancel", "a")]
    assert nodes.waiting == set()


@pytest.mark.parametrize("step", ["in", "freeze"])
async def test_a_new_head_that_dies_during_the_move_leaves_the_old_one_to_serve(step):
    """The error of the dead node ended `cancel` before the old head was released: it waited, and Ray stayed stopped."""
    nodes = Nodes()
    breaks(nodes, "b", step, "cancel")
    shown = await refused(nodes)
    assert "The move was undone: the head is a, as before, and groups went on. b was not reached." in shown
    assert "It has not taken over: if it comes back, it joins as an ordinary node" in shown
    assert nodes.stopped | nodes.waiting <= {"b"}


async def test_a_new_head_that_dies_as_it_takes_over_may_be_the_head_so_that_the_old_one_keeps_waiting():
    nodes = Nodes()
    breaks(nodes, "b", "settle", "cancel")
    shown = await refused(nodes)
    assert "The move could not be undone: b is not reached, and it is not known if it is the head." in shown
    assert nodes.waiting == {"a", "b"}
    nodes = Nodes()
    breaks(nodes, "b", "settle")
    assert "The move was undone" in await refused(nodes), "it answers, and has not taken over"
    nodes = Nodes()
    breaks(nodes, "b", "settle")
    nodes.is_settled = True
    assert "The move could not be undone: b is the head already." in await refused(nodes)
    assert "a" in nodes.waiting
    assert ("cancel", "a") not in nodes.steps


async def test_an_old_head_that_dies_during_the_move_is_named_with_the_command_that_ends_it():
    nodes = Nodes()
    breaks(nodes, "a", "freeze", "cancel", error=NodeError("a cannot be reached"))
    shown = await refused(nodes)
    assert "The move could not be undone: a cannot be reached" in shown
    assert "`sparkfleet move-head --cancel b` undoes it once a is reached" in shown
    assert nodes.stopped | nodes.waiting == {"a"}


async def test_nothing_is_undone_while_a_slow_node_still_carries_out_its_step():
    """It stopped Ray after `cancel` had let it continue: "The move was undone", and a node stayed stopped."""
    nodes = Nodes()
    breaks(nodes, "b", "freeze")
    nodes.slow["a", "freeze"] = asyncio.Event()
    moving = asyncio.create_task(refused(nodes))
    while ("freeze", "a") not in nodes.steps:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert ("cancel", "b") not in nodes.steps
    nodes.slow["a", "freeze"].set()
    assert "The move was undone" in await moving
    assert nodes.stopped == set()


async def test_a_move_that_is_interrupted_waits_for_the_end_of_its_steps():
    nodes = Nodes()
    nodes.slow["c", "freeze"] = asyncio.Event()
    moving = asyncio.create_task(move_head(nodes, MOVE))
    while ("freeze", "c") not in nodes.steps:
        await asyncio.sleep(0)
    moving.cancel()
    await asyncio.sleep(0.01)
    assert ("cancel", "b") not in nodes.steps
    nodes.slow["c", "freeze"].set()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert nodes.stopped | nodes.waiting == set()


async def test_the_two_heads_are_stopped_first_and_the_old_one_knows_before_the_new_one_takes_over():
    nodes = Nodes()
    breaks(nodes, "b", "settle", error=ControlError("no"))
    await refused(nodes)
    assert nodes.steps[:7] == [
        ("out", "a"),
        ("in", "b"),
        ("freeze", "a"),
        ("freeze", "b"),
        ("give", "a"),
        ("freeze", "c"),
        ("settle", "b"),
    ]
