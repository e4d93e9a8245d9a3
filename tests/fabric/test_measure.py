import asyncio
import json

import pytest
from fake_channel import FakeChannel, program_result

from sparkfleet.errors import FactError, NodeError
from sparkfleet.fabric import measure
from sparkfleet.fabric.link_load import RailPair, Rdma, Tcp, has_perftest
from sparkfleet.fabric.link_measurements import LinkMeasurement, TransportProof, UnmeasuredLink
from sparkfleet.fabric.measure import measure_links, measure_pair, pairs_of, prove
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.inventory import RailEnd
from sparkfleet.units import GB

# --- pairs ------------------------------------------------------------------------------------------------------------


def test_a_cable_is_a_pair(two):
    (pair,) = pairs_of(two)
    assert pair.nodes == ("spark1", "spark2")
    assert [rail[1].rdma for rail in pair.rails] == ["rocep1s0f1", "roceP2p1s0f1"]


def test_at_a_switch_every_cable_is_used(switched):
    pairs = pairs_of(switched(4))
    assert [pair.nodes for pair in pairs] == [("s1", "s2"), ("s2", "s3"), ("s3", "s4"), ("s4", "s1")]
    assert all(len(pair.rails) == 2 for pair in pairs)
    assert [pair.nodes for pair in pairs_of(switched(2))] == [("s1", "s2")]
    assert pairs_of(switched(1)) == ()


# --- the proof --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(two):
    return pairs_of(two)[0]


RAILS = {"rocep1s0f1": 0, "roceP2p1s0f1": 0, "enp1s0f1np1": 0, "enP2p1s0f1np1": 0, "enP7s7": 0}


def test_both_rails_moved_and_nothing_else(pair):
    proof = prove(pair, RAILS, RAILS | {"rocep1s0f1": GB, "roceP2p1s0f1": GB, "enP7s7": 9000}, "ib_write_bw")
    assert proof.holds
    assert proof.said == "moved on the rails: rocep1s0f1 1000.0 MB, roceP2p1s0f1 1000.0 MB; elsewhere nothing"


def test_a_rail_that_stood_still_is_named(pair):
    proof = prove(pair, RAILS, RAILS | {"rocep1s0f1": GB}, "ib_write_bw")
    assert not proof.holds
    assert proof.said.startswith("no bytes on roceP2p1s0f1")


def test_bytes_on_the_lan_are_named(pair):
    after = RAILS | {"rocep1s0f1": GB, "roceP2p1s0f1": GB, "enP7s7": GB // 2}
    proof = prove(pair, RAILS, after, "ib_write_bw")
    assert not proof.holds
    assert "bytes went over enP7s7, which is not a rail" in proof.said


def test_tcp_is_counted_by_the_kernel(pair):
    moved = {"enp1s0f1np1": GB, "enP2p1s0f1np1": GB}
    assert prove(pair, RAILS, RAILS | moved, "TCP").holds
    assert not prove(pair, RAILS, RAILS | moved, "ib_write_bw").holds


# --- pairs and rails that cannot be measured ---------------------------------------------------------------------------


class OneRailDown:
    """A loader whose second rail has no address; `ended` counts the loads that ran to their end."""

    method = "fake"

    def __init__(self):
        self.ended = 0

    async def latency(self, rail):
        return 1.5

    async def bandwidth(self, rail, seconds):
        if rail.ends[0].netdev == "enP2p1s0f1np1":
            raise NodeError(
                "spark2: cannot listen on 192.168.177.12: no address", do="sparkfleet fabric plan"
            )
        await asyncio.sleep(seconds)
        self.ended += 1
        return 12.0


async def test_an_error_names_its_rail_and_no_other_rail_is_loaded_any_more(pair, monkeypatch):
    loader = OneRailDown()

    async def loader_of(*_):
        return loader

    async def nothing(*_):
        return {}

    monkeypatch.setattr(measure, "_loader", loader_of)
    monkeypatch.setattr(measure, "bytes_sent", nothing)
    channels = {node: FakeChannel(node) for node in pair.nodes}
    with pytest.raises(NodeError, match="rail enP2p1s0f1np1: spark2: cannot listen") as found:
        await measure_pair(pair, channels, seconds=0.05)
    assert found.value.do == "sparkfleet fabric plan"
    assert loader.ended == 1


async def test_a_pair_that_cannot_be_measured_leaves_the_others(switched, monkeypatch):
    async def one_pair(pair, channels, *, seconds):
        if "s3" in pair.nodes:
            raise NodeError("s3: no answer", do="Is it on?")
        proof = TransportProof(moved={}, holds=True, said="")
        return LinkMeasurement(nodes=pair.nodes, switch=pair.switch, rails=(), proof=proof, when=1.0)

    monkeypatch.setattr(measure, "measure_pair", one_pair)
    measured, unmeasured = await measure_links(switched(4), {})
    assert [one.nodes for one in measured] == [("s1", "s2"), ("s4", "s1")]
    assert unmeasured == tuple(
        UnmeasuredLink(nodes=nodes, switch=measured[0].switch, what="s3: no answer", do="Is it on?")
        for nodes in (("s2", "s3"), ("s3", "s4"))
    )


async def test_pairs_without_a_common_node_are_measured_at_once(switched, monkeypatch):
    """Eight at a switch took 41 s, a pair after the other, while `doctor` measured them in half of that."""
    busy, most = [], []

    async def one_pair(pair, channels, *, seconds):
        assert not set(pair.nodes) & {node for nodes in busy for node in nodes}
        busy.append(pair.nodes)
        most.append(len(busy))
        for _ in range(5):
            await asyncio.sleep(0)
        busy.remove(pair.nodes)
        proof = TransportProof(moved={}, holds=True, said="")
        return LinkMeasurement(nodes=pair.nodes, switch=pair.switch, rails=(), proof=proof, when=1.0)

    monkeypatch.setattr(measure, "measure_pair", one_pair)
    measured, _ = await measure_links(switched(8), {})
    assert [one.nodes for one in measured] == [(f"s{n}", f"s{n % 8 + 1}") for n in range(1, 9)]
    assert max(most) > 1


# --- loading ----------------------------------------------------------------------------------------------------------


def end(address, rdma=None):
    return RailEnd(netdev="lo", rdma=rdma, address=address)


async def test_tcp_over_loopback_is_measured():
    rail = RailPair((LocalChannel("a"), LocalChannel("b")), (end("10.1.1.1/24"), end("10.1.1.2/24")))
    rail = rail._replace(ends=tuple(one.model_copy(update={"address": "127.0.0.1/8"}) for one in rail.ends))
    assert await Tcp().bandwidth(rail, 0.1) > 0.01
    assert 0 < await Tcp().latency(rail) < 100_000


async def test_a_missing_address_is_reported():
    refused = {"event": "error", "kind": "OSError", "what": "[Errno 99] Cannot assign requested address"}
    server = FakeChannel("b", {("python3",): json.dumps(refused) + "\n"})
    rail = RailPair((FakeChannel("a"), server), (end("192.0.2.1/24"), end("192.0.2.2/24")))
    with pytest.raises(NodeError, match=r"b: cannot listen on 192\.0\.2\.2: \[Errno 99\]"):
        await Tcp().bandwidth(rail, 0.1)


@pytest.mark.parametrize("said", [None, {}, {"bytes": 1, "seconds": 0}, {"bytes": -1, "seconds": 1}, []])
async def test_a_sender_that_prints_garbage_is_an_error(said):
    rail = RailPair(
        (FakeChannel("a", {("python3",): program_result(said)}), Listening("b", 5000)),
        (end("10.1.1.1/24"), end("10.1.1.2/24")),
    )
    with pytest.raises(NodeError, match="a: its answer is invalid"):
        await Tcp().bandwidth(rail, 0.1)


class Listening(FakeChannel):
    """A node whose listener reports this port."""

    def __init__(self, node, port):
        super().__init__(node, {("python3",): program_result(None, {"event": "listening", "port": port})})


@pytest.mark.parametrize("port", ["5000", -1, None, 1 << 70, 5.5])
async def test_a_listener_that_prints_garbage_is_an_error(port):
    rail = RailPair((FakeChannel("a"), Listening("b", port)), (end("10.1.1.1/24"), end("10.1.1.2/24")))
    with pytest.raises(NodeError, match="b: its answer is invalid"):
        await Tcp().bandwidth(rail, 0.1)


class Serving(FakeChannel):
    """A node on which the listening end runs until it is killed, and records the time of that."""

    def __init__(self, node):
        super().__init__(node)
        self.killed = asyncio.Event()

    async def run(self, argv, **more):
        self.argv = argv
        try:
            await asyncio.Event().wait()
        finally:
            self.killed.set()


ROW = " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 10 0.00 98.04 0.17\n"


async def test_rdma_retries_until_the_other_end_listens_and_then_kills_it(monkeypatch):
    monkeypatch.setattr("sparkfleet.fabric.link_load.CONNECT_PAUSE_S", 0)
    tries = iter([1, 1, 0])

    def client(call):
        code = next(tries)
        said = ROW if code == 0 else ""
        return Completed(argv=call.argv, exit_code=code, stdout=said, stderr="Couldn't connect")

    server = Serving("b")
    sender = FakeChannel("a", {("ib_write_bw",): client})
    rail = RailPair((sender, server), (end("10.1.1.1/24", "r0"), end("10.1.1.2/24", "r1")), (3, 5))
    assert await Rdma().bandwidth(rail, 1) == pytest.approx(98.04 / 8)
    assert server.killed.is_set()
    assert len(sender.calls) == 3
    assert sender.calls[0].argv[-3:] == ("-x", "3", "10.1.1.2")
    assert server.argv[-2:] == ("-x", "5")


async def test_rdma_that_never_connects_is_an_error_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr("sparkfleet.fabric.link_load.CONNECT_PAUSE_S", 0)
    refused = Completed(
        argv=("ib_write_bw",), exit_code=1, stdout="", stderr="Couldn't connect to 10.1.1.2:1"
    )
    server = Serving("b")
    rail = RailPair(
        (FakeChannel("a", {("ib_write_bw",): refused}), server),
        (end("10.1.1.1/24", "r0"), end("10.1.1.2/24", "r1")),
    )
    with pytest.raises(FactError, match="Couldn't connect"):
        await Rdma().bandwidth(rail, 1)
    assert server.killed.is_set()


async def test_presence_of_the_tools():
    found = Completed(argv=("which",), exit_code=1, stdout="/usr/bin/ib_write_bw\n", stderr="")
    assert not await has_perftest(FakeChannel("a", {("which",): found}))
    assert not await has_perftest(FakeChannel("a"))
    assert await has_perftest(FakeChannel("a", {("which",): "/usr/bin/ib_write_bw\n/usr/bin/ib_write_lat\n"}))
