"""The actors through which the controller reads its nodes: which it waits for, and which it replaces."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
from clocks import Clock
from observed_values import NODE

from sparkfleet.controlplane.nodes import CopyContent
from sparkfleet.controlplane.ray import node_actor
from sparkfleet.controlplane.ray.node_actor import HANG_S, START_S, NodeActors
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.state.store_copies import KeptCopy

SEEN = (NODE.readings.model_dump_json(), "boot", 140.0, (), "", None)


class Cluster:
    """One node, `a`, and the actors that were started on it."""

    def __init__(self):
        self.started, self.answer, self.node_id = 0, SEEN, "id"
        self.kept, self.keeps = [], ""

    def nodes(self):
        return [{"Labels": {NODE_LABEL: "a"}, "NodeID": self.node_id, "Alive": True}]

    def options(self, **_):
        return self

    def remote(self):
        self.started += 1
        return SimpleNamespace(
            look=SimpleNamespace(remote=self._look), keep_copy=SimpleNamespace(remote=self._keep)
        )

    async def _keep(self, *copy):
        if isinstance(self.keeps, Exception):
            raise self.keeps
        self.kept.append(copy)
        return self.keeps

    async def _look(self, _):
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def cluster(monkeypatch):
    one = Cluster()
    monkeypatch.setattr(ray, "nodes", one.nodes)
    monkeypatch.setattr(node_actor, "NodeAgent", one)
    monkeypatch.setattr(node_actor, "LOOK_S", 0.01)
    return one


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def actors(cluster, clock):
    return NodeActors(["a"], {}, clock)


async def looks(actors, clock, count, every_s):
    """True for each look that was answered."""
    found = []
    for _ in range(count):
        (node,) = await actors.look()
        assert node.joined
        found.append(node.memory_total is not None)
        clock.now += every_s
    return found


async def test_one_that_starts_slowly_is_waited_for(cluster, actors, clock):
    """Another in its place would start as slowly, on a node that is busier by one more start."""
    cluster.answer = None
    assert not any(await looks(actors, clock, 20, 5.0))
    assert cluster.started == 1
    cluster.answer = SEEN
    assert await looks(actors, clock, 1, 5.0) == [True]
    assert cluster.started == 1


async def test_a_node_reports_its_boot_and_how_long_ago_that_was(actors):
    (node,) = await actors.look()
    assert (node.boot, node.up_s) == ("boot", 140.0)


async def test_one_that_does_not_start_is_replaced(cluster, actors, clock):
    cluster.answer = None
    await looks(actors, clock, 1, START_S)
    await looks(actors, clock, 2, 1.0)
    assert cluster.started == 2


async def test_one_that_hangs_is_replaced_and_its_successor_has_time_to_start(cluster, actors, clock):
    assert await looks(actors, clock, 1, HANG_S / 2) == [True]
    cluster.answer = None
    await looks(actors, clock, 1, HANG_S / 2)
    assert cluster.started == 1, "one late answer is none that hangs"
    await looks(actors, clock, 10, HANG_S)
    assert cluster.started == 2


async def test_one_that_has_ended_is_replaced_at_once(cluster, actors, clock):
    cluster.answer = ray.exceptions.ActorDiedError()
    await looks(actors, clock, 3, 1.0)
    assert cluster.started == 3


async def test_one_whose_call_raises_goes_on_unless_nothing_else_answers_for_long(cluster, actors, clock):
    """A node whose state directory belonged to another user lost its actor by that, and could start no other."""
    await looks(actors, clock, 1, 1.0)
    cluster.answer = ray.exceptions.RayTaskError("look", "trace", PermissionError())
    await looks(actors, clock, 3, 1.0)
    assert cluster.started == 1
    await looks(actors, clock, 3, HANG_S)
    assert cluster.started == 2


async def test_a_copy_is_put_into_the_object_store_once_and_goes_to_those_that_have_joined(
    cluster, actors, monkeypatch
):
    monkeypatch.setattr(ray, "put", lambda content: ("reference", content))
    copy = CopyContent(name="a.db", content=b"content", sha256="12")
    assert await actors.keep_copy(("a", "b"), copy) == {"a": "", "b": "it does not answer"}
    assert cluster.kept == [("a.db", ("reference", b"content"), "12")]
    cluster.keeps = "its disk is full"
    assert await actors.keep_copy(("a",), copy) == {"a": "its disk is full"}
    cluster.keeps = ray.exceptions.RayTaskError("keep_copy", "trace", AttributeError())
    assert await actors.keep_copy(("a",), copy) == {"a": "it does not answer"}


async def test_a_copy_that_the_object_store_does_not_take_is_named_for_each_node(actors, monkeypatch):
    def full(content):
        raise ray.exceptions.ObjectStoreFullError

    monkeypatch.setattr(ray, "put", full)
    words = "Ray's object store on the head does not take it"
    answers = await actors.keep_copy(("a", "b"), CopyContent(name="a.db", content=b"", sha256=""))
    assert answers == {"a": words, "b": words}


async def test_a_node_reports_the_copy_that_it_keeps(cluster, actors):
    kept = KeptCopy(name="a.db", bytes=7, since_s=1.0)
    cluster.answer = (*SEEN[:5], kept)
    (node,) = await actors.look()
    assert node.kept_copy == kept


async def test_a_node_that_joined_again_has_a_new_one(cluster, actors, clock):
    await looks(actors, clock, 2, 1.0)
    cluster.node_id = "another"
    await looks(actors, clock, 2, 1.0)
    assert cluster.started == 2


async def test_only_the_named_nodes_are_looked_at(actors):
    assert await actors.look(["b"]) == ()
    assert [node.name for node in await actors.look(["a"])] == ["a"]
