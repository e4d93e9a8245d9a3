"""The conditions for replacing a lost head, and the copy with which it is replaced."""

import pytest
from control_values import inventory

from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.store_copies import StoreCopy
from sparkfleet.errors import ControlError, NodeError, SpecError
from sparkfleet.fleet.lifecycle import lost_head, move_head
from sparkfleet.fleet.lifecycle.lost_head import plan_lost
from sparkfleet.fleet.lifecycle.move_plan import CheckedCopy, MovePlan
from sparkfleet.fleet.nodes.surroundings import NodeRole, NodeSurroundings


def member(of="a", live=False):
    role = NodeRole(verb="join", node="b", head=of, ray="10.0.0.1:6379", live=live)
    return NodeSurroundings(id="one", role=role, root="/state")


HEAD = NodeRole(verb="up", node="a", head="a", ray="10.0.0.1:6379", live=False)


def copy(changes=3, at=100.0, trouble=""):
    return StoreCopy(name=f"{at}.db", at=at, occasion="change", bytes=7, changes=changes, trouble=trouble)


def kept(one, running=()):
    return {
        "copy": one.model_dump(mode="json") if one is not None else None,
        "path": "/state/kept/x.db" if one is not None else "",
        "running": [list(pair) for pair in running],
    }


class Nodes:
    """A session with nodes that answer, each with what it keeps, and a channel to each."""

    def __init__(self, monkeypatch, around, keeps=None):
        self.inventory = inventory("a", "b", "c")
        self.programs = self.lifecycle = self.access = self
        self.channels = {name: Channel() for name in self.inventory.nodes}
        self.keeps, self.steps = keeps or {}, []

        async def found(*_, **__):
            return around

        async def unreached(_, name, __):
            raise NodeError(f"{name} cannot be reached")

        monkeypatch.setattr(lost_head, "surroundings_of", found)
        monkeypatch.setattr(lost_head, "read_surroundings", unreached)

    async def pythons(self, *_):
        return {}

    async def move_step(self, name, request):
        self.steps.append((request.step, name))
        if request.step == "kept":
            return self.keeps.get(name) or kept(None)
        if request.step == "in":
            self.given = request
            return {"outcome": "/state/boot.json", "at_its_port": False}
        return {}

    def state_dir(self, _):
        return None

    async def until_up(self, outcome, on_event, node):
        self.steps.append(("up", node))

    async def prepare(self):
        return Answer()

    def joining(self, name, prepared):
        return name

    async def join(self, name, request):
        self.steps.append(("join", name))

    async def until_joined(self, client, on_event, held_s, without):
        self.without = tuple(without)

    reach = None


class Answer:
    address = HeadAddress(ray="10.0.0.2:6379", api="http://127.0.0.1:1", gateway_host="", gateway_port=8000)
    api_token = "t"


class Channel:
    async def read(self, path, *, offset, limit):
        return b"content"

    async def write(self, path, content):
        self.written = (path, content)


async def test_the_newest_sound_copy_of_any_node_is_taken(monkeypatch):
    keeps = {"b": kept(copy(3, 200.0), [("x", 2)]), "c": kept(copy(4, 100.0), [("x", 2), ("y", 5)])}
    nodes = Nodes(monkeypatch, {"b": member(), "c": member()}, keeps)
    plan = await plan_lost(nodes, "b")
    assert plan.lost.kept == CheckedCopy("c", "/state/kept/x.db", copy(4, 100.0))
    assert plan.lost.running == (("x", 2), ("y", 5))
    assert (plan.live, plan.absent, plan.store) == (True, ("a",), "/state/.moving.db")
    nodes.keeps["c"] = kept(copy(4, trouble="it is damaged"))
    assert (await plan_lost(nodes, "b")).lost.kept.node == "b"


@pytest.mark.parametrize(
    ("around", "words"),
    [
        ({"a": NodeSurroundings(store=True), "b": member()}, "a is not lost: it can be reached"),
        ({"a": NodeSurroundings(role=HEAD), "b": member()}, "a is not lost: it can be reached"),
        ({"b": member(), "c": member(live=True)}, "a is not lost: c reaches its Ray"),
        ({"b": member(), "c": member("d", live=True)}, "c belongs to head d, which is running"),
        ({"b": member()}, "No node keeps a copy of the store of a"),
        (
            {"b": NodeSurroundings(), "c": member()},
            "b is in the inventory, and not in the fleet that runs on c",
        ),
    ],
)
async def test_a_head_that_lives_is_not_replaced_nor_one_without_a_copy(monkeypatch, around, words):
    nodes = Nodes(monkeypatch, around)
    with pytest.raises(ControlError, match=words) as refused:
        await plan_lost(nodes, "b")
    assert "Nothing was changed" in refused.value.means
    assert {step for step, _ in nodes.steps} <= {"kept"}


async def test_damaged_copies_are_named(monkeypatch):
    nodes = Nodes(monkeypatch, {"b": member()}, {"b": kept(copy(trouble="it is damaged"))})
    with pytest.raises(ControlError, match="that of b cannot be used: it is damaged"):
        await plan_lost(nodes, "b")


async def test_the_lost_head_itself_and_a_node_that_is_not_reached_replace_nothing(monkeypatch):
    nodes = Nodes(monkeypatch, {"c": member()}, {"c": kept(copy())})
    with pytest.raises(SpecError, match="a is the lost head itself"):
        await plan_lost(nodes, "a")
    with pytest.raises(SpecError, match="unknown node"):
        await plan_lost(nodes, "x")
    with pytest.raises(NodeError, match="b cannot be reached"):
        await plan_lost(nodes, "b")


async def test_a_head_whose_disk_is_new_is_lost_too(monkeypatch):
    nodes = Nodes(monkeypatch, {"a": NodeSurroundings(), "b": member()}, {"b": kept(copy())})
    assert (await plan_lost(nodes, "b")).absent == ("a", "c")


async def test_no_step_goes_to_the_lost_head_and_none_waits_for_it(monkeypatch):
    nodes = Nodes(monkeypatch, {"b": member(), "c": member()}, {"c": kept(copy(), [("x", 2)])})
    moved = await move_head.move_head(nodes, await plan_lost(nodes, "b"))
    assert nodes.steps[2:] == [
        *(("in", "b"), ("up", "b"), ("freeze", "b"), ("freeze", "c"), ("settle", "b"), ("join", "c"))
    ]
    assert nodes.given.running == (("x", 2),)
    assert not nodes.given.ray_token
    assert nodes.channels["b"].written == ("/state/.moving.db", b"content")
    assert nodes.without == ("a",)
    assert nodes.inventory.head == "b"
    assert not moved.finds


async def test_a_replacement_that_was_interrupted_after_the_new_head_took_over_is_completed(monkeypatch):
    head = NodeSurroundings(role=NodeRole(verb="up", node="b", head="b", ray="10.0.0.2:6379", live=True))
    nodes = Nodes(monkeypatch, {"b": head, "c": member("b", live=True)})
    plan = await plan_lost(nodes, "b")
    assert plan.settled
    await move_head.move_head(nodes, plan)
    assert nodes.steps == [("settle", "b"), ("join", "c")], "what it had not completed itself is"


async def test_a_replacement_that_fails_is_undone_without_the_lost_head(monkeypatch):
    nodes = Nodes(monkeypatch, {"b": member(), "c": member()}, {"b": kept(copy())})
    plan = await plan_lost(nodes, "b")
    assert isinstance(plan, MovePlan)

    async def fails(*_):
        raise ControlError("The fleet did not come up within 180 s.")

    monkeypatch.setattr(nodes, "until_up", fails)
    with pytest.raises(ControlError) as failed:
        await move_head.move_head(nodes, plan)
    assert nodes.steps[-2:] == [("in", "b"), ("cancel", "b")]
    assert failed.value.means == "The move was undone: the head is a, as before, and b is an ordinary node."
