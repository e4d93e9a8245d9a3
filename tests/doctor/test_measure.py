import asyncio

import pytest
from batch_fake import BatchFake
from sparks import Spark, inventory

from sparkfleet.doctor import measure
from sparkfleet.doctor.collect import gather
from sparkfleet.doctor.measure import average_us, measure_paths, passed, path_of, ping
from sparkfleet.errors import NodeError
from sparkfleet.fabric.link_measurements import LinkMeasurement, RailMeasurement, TransportProof
from sparkfleet.fabric.measure import pairs_of
from sparkfleet.remote.channel import Completed
from sparkfleet.specs.load import parse_inventory

REPLIES = """PING 192.168.100.12 (192.168.100.12) from 192.168.100.11 enp1s0f1np1: 8972(9000) bytes of data.
8980 bytes from 192.168.100.12: icmp_seq=1 ttl=64 time=0.612 ms

--- 192.168.100.12 ping statistics ---
5 packets transmitted, 5 received, 0% packet loss, time 801ms
rtt min/avg/max/mdev = 0.412/0.633/1.020/0.203 ms
"""
LOST = """PING 192.168.100.12 (192.168.100.12) from 192.168.100.11 enp1s0f1np1: 8972(9000) bytes of data.

--- 192.168.100.12 ping statistics ---
5 packets transmitted, 0 received, 100% packet loss, time 820ms
"""


def done(stdout, exit_code=0, stderr=""):
    return Completed(argv=("ping",), exit_code=exit_code, stdout=stdout, stderr=stderr)


def measured(pair, **more):
    rails = [
        RailMeasurement(netdev=a.netdev, method="ib_write_bw", gb_per_s=12.25, latency_us=1.5)
        for a, _ in pair.rails
    ]
    proof = TransportProof(moved={}, holds=True, said="moved")
    return LinkMeasurement(
        nodes=pair.nodes, switch=pair.switch, rails=tuple(rails), proof=proof, when=0.0, **more
    )


def test_pings():
    assert passed(done(REPLIES)) is True
    assert average_us(done(REPLIES)) == pytest.approx(633)
    assert passed(done(LOST, 1)) is False
    assert average_us(done(LOST, 1)) is None
    assert passed(done("", 1, "ping: local error: message too long, mtu=1500")) is False
    assert passed(done("", 2, "ping: unknown iface")) is None
    assert passed(NodeError("ping was not found")) is None


async def test_a_pair(monkeypatch):
    async def healthy(pair, channels, *, seconds):
        return measured(pair)

    monkeypatch.setattr(measure, "measure_pair", healthy)
    channels = {"spark1": Spark(1).channel(), "spark2": Spark(2).channel()}
    fleet = await gather(inventory(), channels)
    channels["spark1"] = BatchFake("spark1", {("ping",): REPLIES})
    found = await measure_paths(inventory(), fleet, channels)
    (path,) = found.paths
    assert path.name == fleet.links[0].name == "spark1–spark2"
    assert [(rail.gbit_per_s, rail.one_way_us, rail.jumbo) for rail in path.rails] == [(98.0, 1.5, True)] * 2
    assert path.rails[0].ping_us == pytest.approx(633)
    assert len(found.kept) == 1


@pytest.mark.parametrize(
    ("second", "expected"), [(REPLIES, [(True, True)] * 2), (LOST, [(False, False)] * 2)]
)
async def test_rails_that_lost_every_ping_are_pinged_again_with_more_patience(monkeypatch, second, expected):
    async def broken(pair, channels, *, seconds):
        raise NodeError("no python3 on spark2")

    def answer(call):
        return done(LOST, 1) if call.argv[call.argv.index("-W") + 1] == "1" else done(second)

    monkeypatch.setattr(measure, "measure_pair", broken)
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Spark(2).channel()})
    near = BatchFake("spark1", {("ping",): answer})
    (path,) = (await measure_paths(inventory(), fleet, {"spark1": near, "spark2": BatchFake("spark2")})).paths
    assert near.batches == 2
    assert [(rail.reached, rail.jumbo) for rail in path.rails] == expected


async def test_a_path_that_cannot_be_measured_has_its_reason(monkeypatch):
    async def broken(pair, channels, *, seconds):
        raise NodeError("no python3 on spark2")

    monkeypatch.setattr(measure, "measure_pair", broken)
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Spark(2).channel()})
    found = await measure_paths(
        inventory(), fleet, {"spark1": BatchFake("spark1"), "spark2": BatchFake("spark2")}
    )
    assert found.paths[0].why_not == "no python3 on spark2"
    assert found.kept == ()


SWITCHED = (
    """
fleet: home
head: n1
nodes:
"""
    + "".join(
        f"  n{n}: {{address: 192.168.1.{n}, user: u, host_key: 'SHA256:{'A' * 43}'}}\n" for n in range(1, 7)
    )
    + "links:\n"
    + "".join(
        f"  - {{nodes: [n{n}], switch: sw, rails: [[{{netdev: e, address: 10.0.0.{n}/24}}]]}}\n"
        for n in range(1, 7)
    )
)


async def test_pairs_that_share_a_node_wait_for_each_other_and_others_do_not(monkeypatch):
    busy, most = set(), 0

    async def watched(pair, channels, *, seconds):
        nonlocal most
        assert not busy & set(pair.nodes)
        busy.update(pair.nodes)
        most = max(most, len(busy))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        busy.difference_update(pair.nodes)
        return measured(pair)

    monkeypatch.setattr(measure, "measure_pair", watched)
    spec = parse_inventory(SWITCHED, "inventory.yaml")
    channels = {name: BatchFake(name) for name in spec.nodes}
    fleet = await gather(spec, channels)
    found = await measure_paths(spec, fleet, channels)
    assert len(found.paths) == len(pairs_of(spec)) == 6
    assert found.paths[0].name == "n1–n2 over sw"
    assert most >= 4


def test_a_path_has_the_ends_of_its_pair():
    (pair,) = pairs_of(inventory())
    assert path_of(pair).rails[1].there.ip == "192.168.101.12"


def test_no_shell_and_no_fragments():
    argv = ping("enp1s0f1np1", "192.168.100.12", 8972)
    assert argv[argv.index("-M") + 1] == "do"
    assert argv[-1] == "192.168.100.12"
