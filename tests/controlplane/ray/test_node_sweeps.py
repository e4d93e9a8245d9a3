"""Sweeps of nodes that answer late, or not at all, and of the node's own side."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import ray
from clocks import Clock

from sparkfleet.controlplane.nodes import RanksOf, SweepList
from sparkfleet.controlplane.ray import node_actor
from sparkfleet.controlplane.ray.node_actor import ANSWER_S, NodeActors, NodeAgent
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.files.fleet_paths import FleetPaths

LIST = SweepList(frozenset({("tiny", 1, 0)}), {"tiny": 1}, frozenset({"tiny"}))


class Cluster:
    """Nodes `a` and `b`, with what their actors were asked, in order."""

    def __init__(self):
        self.asked, self.silent, self.takes_s, self.clock = [], set(), 0.0, Clock()
        self.made = []

    def nodes(self):
        return [{"Labels": {NODE_LABEL: name}, "NodeID": name, "Alive": True} for name in "ab"]

    def options(self, *, label_selector, **_):
        self.made.append(label_selector[NODE_LABEL])
        return self

    def remote(self):
        name = self.made[-1]

        async def moment():
            self.asked.append(("moment", name))
            if name in self.silent:
                await asyncio.Event().wait()
            self.clock.now += self.takes_s
            return 100.0

        async def sweep(*lists, **bounds):
            self.asked.append(("sweep", name, lists, bounds))
            return (f"rank of {name}",)

        return SimpleNamespace(moment=SimpleNamespace(remote=moment), sweep=SimpleNamespace(remote=sweep))


@pytest.fixture
def cluster(monkeypatch):
    one = Cluster()
    monkeypatch.setattr(ray, "nodes", one.nodes)
    monkeypatch.setattr(node_actor, "NodeAgent", one)
    return one


@pytest.fixture
def actors(cluster):
    return NodeActors(["a", "b"], {}, cluster.clock)


async def test_what_is_left_alone_is_listed_after_the_node_has_answered(cluster, actors):
    """A list from before would lack what was loaded, and started, until the node's first answer."""

    def listed():
        cluster.asked.append("list")
        return LIST

    cluster.takes_s = 3.0
    assert await actors.sweep(["a"], listed) == ("rank of a on a",)
    bounds = {"moment": 100.0, "valid_s": ANSWER_S - 3.0}
    assert cluster.asked == [
        ("moment", "a"),
        "list",
        ("sweep", "a", ([("tiny", 1, 0)], {"tiny": 1}, ["tiny"]), bounds),
    ]


async def test_a_silent_node_is_not_swept_and_delays_no_other(cluster, actors, monkeypatch):
    monkeypatch.setattr(node_actor, "ANSWER_S", 0.05)
    cluster.silent = {"a"}
    assert await actors.sweep(["a", "b"], lambda: LIST) == ("rank of b on b",)
    assert [one[:2] for one in cluster.asked] == [("moment", "a"), ("moment", "b"), ("sweep", "b")]


async def test_only_the_named_nodes_are_called(cluster, actors):
    assert await actors.sweep(["b", "unknown"], lambda: LIST) == ("rank of b on b",)
    assert {one[1] for one in cluster.asked} == {"b"}


class Runtime:
    """Records sweeps."""

    def __init__(self):
        self.swept = []

    async def sweep(self, keep, before):
        self.swept.append((keep, before))
        return ("rank a",)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setattr(FleetPaths, "of_this_process", lambda: FleetPaths(tmp_path))
    one = NodeAgent.__ray_metadata__.modified_class()
    one._runtime = Runtime()
    return one


async def test_a_node_spares_what_began_after_its_first_answer(agent):
    moment = await agent.moment()
    assert moment <= time.monotonic()
    assert await agent.sweep([("tiny", 1, 0)], {"tiny": 1}, [], moment=moment, valid_s=60.0) == ("rank a",)
    ((keep, before),) = agent._runtime.swept
    assert isinstance(keep, RanksOf)
    assert RankId(fleet="f", deployment="tiny", generation=1, replica=0, rank=0) in keep
    assert before == moment


async def test_a_call_that_arrives_after_its_caller_has_given_up_does_nothing(agent, tmp_path):
    """One that Ray had kept for a node without a network was carried out by its list from before."""
    kv = tmp_path / "kv" / "tiny" / "key"
    kv.mkdir(parents=True)
    late = await agent.moment() - ANSWER_S - 1
    assert await agent.sweep([], {"tiny": 1}, [], moment=late, valid_s=ANSWER_S) == ()
    assert agent._runtime.swept == []
    assert kv.exists()
    await agent.sweep([], {"tiny": 1}, [], moment=late, valid_s=ANSWER_S + 60)
    assert not kv.exists()


async def test_old_files_are_removed_before_engines_end(agent, tmp_path):
    """Meanwhile an older generation may start again, with files that are old by this list."""
    label = FleetPaths(tmp_path).label
    logs = FleetPaths(tmp_path).logs
    logs.mkdir()
    for generation in range(1, 6):
        (logs / f"{label}_tiny_g{generation}_0_0.log").touch()
    found = []

    async def sweep(keep, before):
        found.extend(sorted(path.name for path in logs.iterdir()))
        return ()

    agent._runtime.sweep = sweep
    await agent.sweep([("tiny", 5, 0)], {"tiny": 5}, [], moment=await agent.moment(), valid_s=60.0)
    assert found == [f"{label}_tiny_g{generation}_0_0.log" for generation in (3, 4, 5)]
