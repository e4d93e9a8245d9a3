"""All-reduces in an engine's environment: two real ranks of PyTorch on loopback, and the commands of containers."""

import sys

import pytest
from fake_channel import FakeChannel

from sparkfleet.engines.base import RankRail
from sparkfleet.engines.rendezvous import RankNetwork
from sparkfleet.errors import NodeError
from sparkfleet.fleet.nodes import all_reduce
from sparkfleet.fleet.nodes.all_reduce import measure_all_reduce, rail_bytes
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.inventory import Link


def link(*addresses, rdma=True):
    """A cable of two rails between a and b."""
    devices = {"rdma": "rocep1"} if rdma else {}
    rails = [
        [
            {"netdev": f"{netdev}{end}", "address": f"{prefix}.{number}/24", **devices}
            for end, number in (("a", 1), ("b", 2))
        ]
        for netdev, prefix in zip(("one", "two"), addresses, strict=False)
    ]
    return Link.model_validate({"nodes": ["a", "b"], "rails": rails}, strict=False)


def candidate(**more):
    return Candidate(
        model="builtin:tiny",
        shape=GroupShape(nodes=("a", "b"), tp=2),
        engine="vllm",
        engine_version="",
        context=512,
        concurrency=1,
        python=sys.executable,
        **more,
    )


def on_loopback(monkeypatch):
    """Ranks that meet on loopback, which no inventory may name."""
    rails = (RankRail(netdev="lo", address="127.0.0.1"),)
    network = RankNetwork(leader="127.0.0.1", rails=rails, peers=("127.0.0.1", "127.0.0.1"))
    monkeypatch.setattr(all_reduce, "rank_networks", lambda *_: (network, network))


async def test_two_ranks_of_pytorch_measure_each_other(monkeypatch):
    """Both on loopback: rank 0 listens there alone, and the sum of every message is checked by the ranks."""
    monkeypatch.setitem(all_reduce.LARGE, "gloo", 1 << 20)
    monkeypatch.setitem(all_reduce.ROUNDS, "gloo", 2)
    monkeypatch.setattr(all_reduce, "SETTLE_S", 0.0)
    on_loopback(monkeypatch)
    channels = {"a": LocalChannel("a"), "b": LocalChannel("b")}
    found = await measure_all_reduce(candidate(device="cpu"), "selftest", (), channels)
    assert (found.backend, found.nccl, found.by_rdma) == ("gloo", "", False)
    assert found.latency_us > 0
    assert found.gb_per_s > 0
    # five to warm up, five times one, and one whose sum is checked
    assert found.moved == 11 << 20
    assert {node: list(rails) for node, rails in found.sent.items()} == {"a": ["lo"], "b": ["lo"]}


async def test_an_environment_without_pytorch_is_an_error_with_its_words(monkeypatch):
    on_loopback(monkeypatch)
    channels = {"a": LocalChannel("a"), "b": LocalChannel("b")}
    bare = candidate(device="cpu").model_copy(update={"python": "/nonexistent/python3"})
    with pytest.raises(NodeError, match="/nonexistent/python3"):
        await measure_all_reduce(bare, "selftest", (), channels)


class Containers(FakeChannel):
    """A node with docker and no container, and podman with one."""

    def __init__(self, node, *, names=""):
        super().__init__(node)
        self._names = names

    async def run(self, argv, **more):
        if argv[0] == "docker":
            raise NodeError("no docker")
        self.asked = tuple(argv)
        done = await LocalChannel(self.node).run(("printf", self._names or "%s"))
        return done.model_copy(update={"argv": tuple(argv)})


async def test_in_containers_the_program_runs_in_the_one_of_the_rank():
    boxed = candidate(runtime="container", image="vllm/vllm-openai").model_copy(update={"python": "python3"})
    channel = Containers("a", names="sparkfleet-home-selftest-g1-0-1\\n")
    argv = await all_reduce._interpreter(channel, boxed, "selftest", 1)
    assert argv == ("podman", "exec", "--interactive", "sparkfleet-home-selftest-g1-0-1", "python3")
    assert {"label=sparkfleet.deployment=selftest", "label=sparkfleet.rank=1"} <= set(channel.asked)
    with pytest.raises(NodeError, match="no container of rank 1 of selftest runs"):
        await all_reduce._interpreter(Containers("a"), boxed, "selftest", 1)


def test_bytes_of_gpus_are_those_of_the_rdma_devices_if_every_rail_has_one():
    channels = {"a": LocalChannel("a"), "b": LocalChannel("b")}
    rails = [link("10.0.1", "10.0.2")]
    assert rail_bytes(candidate(), rails, channels).by_rdma
    assert not rail_bytes(candidate(device="cpu"), rails, channels).by_rdma
    assert not rail_bytes(candidate(), [link("10.0.1", "10.0.2", rdma=False)], channels).by_rdma
