"""Checks of what was measured between the nodes."""

import pytest
from sparks import RAILS, netdev

from sparkfleet.doctor import registry
from sparkfleet.doctor.findings import Severity
from sparkfleet.fabric.link_measurements import TransportProof

SECOND = RAILS[1][0]


async def test_rails_that_were_not_pinged_are_not_known(look):
    unmeasured = dict.fromkeys(("jumbo", "reached", "ping_us", "one_way_us", "gbit_per_s"))
    told = registry.examine(await look(measured={1: unmeasured, 2: unmeasured}))
    found = {one.severity for one in told if one.id in ("rail-reached", "rail-jumbo", "rail-latency")}
    assert found == {Severity.UNKNOWN}


async def test_a_degraded_rail(findings):
    told = await findings(measured={1: {"gbit_per_s": 13.2}})
    assert [(one.id, one.severity) for one in told] == [
        ("rail-bandwidth", "error"),
        ("rails-balanced", "warning"),
    ]
    assert "gives 13.2 Gb/s, measured with ib_write_bw: the ConnectX-7 came up degraded" in told[0].what
    assert any("reboot" in step for step in told[0].do)


async def test_a_rail_that_is_somewhat_slow(findings):
    told, _ = await findings(measured={n: {"gbit_per_s": 70.0} for n in (1, 2)})
    assert (told.id, told.severity) == ("rail-bandwidth", "warning")


async def test_tcp_cannot_prove_that_a_rail_is_slow_unless_it_is_very_slow(findings):
    tcp = {"gbit_per_s": 40.0, "measured_with": "TCP (4 streams, Python)"}
    assert await findings(measured={1: tcp, 2: tcp}) == []
    (told,) = await findings(measured={1: tcp | {"gbit_per_s": 12.0}, 2: tcp})
    assert (told.id, told.severity) == ("rail-bandwidth", "warning")
    assert "12.0 Gb/s, measured with TCP" in told.what
    assert "perftest" in told.do[0]


async def test_packets_that_do_not_pass(findings):
    (told,) = await findings(measured={2: {"jumbo": False}})
    assert (told.id, told.severity) == ("rail-jumbo", "error")
    assert "packets of 9000 bytes do not pass" in told.what


async def test_a_rail_without_an_answer(findings):
    silent = {"jumbo": False, "reached": False, "ping_us": None, "gbit_per_s": None}
    (told,) = await findings(measured={2: silent})
    assert (told.id, told.severity) == ("rail-reached", "error")
    assert "192.168.101.12 does not answer spark1 on enP2p1s0f1np1" in told.what


async def test_a_rail_that_is_down_is_one_fault(sparks, findings):
    sparks[1].netdevs[SECOND] = netdev(SECOND, "192.168.101.12/24", carrier=False)
    silent = {"jumbo": False, "reached": False, "ping_us": None, "gbit_per_s": None}
    assert [one.id for one in await findings(measured={2: silent})] == ["rail-down"]


async def test_rails_that_were_not_loaded_have_the_reason_once(look):
    unloaded = {"gbit_per_s": None, "one_way_us": None}
    told = await look(measured={1: unloaded, 2: unloaded}, proof=None)
    path = told.paths[0].model_copy(update={"not_loaded": "no python3 on spark2"})
    found = registry.examine(told.model_copy(update={"paths": (path,)}))
    assert [one.what for one in found if one.id in ("transport-proof", "rail-bandwidth")] == [
        "traffic between spark1 and spark2: its path was not measured, because no python3 on spark2",
        "bandwidth of spark1–spark2: not measured, because no python3 on spark2",
    ]


async def test_lost_pings_on_a_rail_that_carried_the_load_are_no_fault(findings):
    assert await findings(measured={2: {"jumbo": False, "reached": False, "ping_us": None}}) == []


async def test_a_small_ping_that_did_not_end_is_not_a_rail_without_an_answer(look):
    unfinished = {"jumbo": False, "reached": None, "ping_us": None, "gbit_per_s": None}
    found = registry.examine(await look(measured={2: unfinished}))
    assert [one.severity for one in found if one.id == "rail-reached"] == [Severity.UNKNOWN]


@pytest.mark.parametrize(
    ("measured", "words"),
    [({"ping_us": 5200.0}, "5.2 ms there and back"), ({"one_way_us": 88.0}, "88.0 us one way")],
)
async def test_slow_small_messages(findings, measured, words):
    (told,) = await findings(measured={2: measured})
    assert (told.id, told.severity) == ("rail-latency", "warning")
    assert words in told.what


async def test_bytes_that_take_the_lan(findings):
    said = "bytes went over enP7s7, which is not a rail"
    (told,) = await findings(proof=TransportProof(moved={"enP7s7": 10**9}, holds=False, said=said))
    assert (told.id, told.severity) == ("transport-proof", "error")
    assert said in told.what
    assert told.evidence == {"enP7s7": "1000.0 MB"}
