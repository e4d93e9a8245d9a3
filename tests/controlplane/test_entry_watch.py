"""Entries of the endpoint under the controller: kept as its address has them, named if they do not serve."""

import pytest
from controller_world import ADDRESS, World

from sparkfleet.controlplane.clocks import Now
from sparkfleet.controlplane.entry_watch import AWAY_S, LOOK_S
from sparkfleet.gateway.listening import EntryOrder, GatewayEntry
from sparkfleet.gateway.report import EntryReport, GatewayReport

ENTRY = GatewayEntry(node="spark2", host="0.0.0.0", name="10.0.0.2", target="192.168.100.10")
SPREAD = ADDRESS.model_copy(update={"gateway_host": "0.0.0.0", "name": "10.0.0.1", "entries": (ENTRY,)})
WORKS = EntryReport(node="spark2", listening=True)


class Time:
    def __init__(self):
        self.now = 1000.0

    def clocks(self):
        return Now(unix=self.now, steady=self.now)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def world(tmp_path, time):
    made = World(tmp_path)
    made.restarted(clocks=time.clocks)
    return made


async def seen(world, time, seconds):
    """Lets time pass with a gateway, and a look every two seconds; warnings of the status afterwards."""
    gateway = GatewayReport(replica="r", url="http://a", metrics_url="", at=1.0)
    for _ in range(int(seconds / LOOK_S)):
        time.now += LOOK_S
        world.controller.fleet.reports.gateway(gateway)
        await world.look()
        await world.controller.entries.look()
    return world.controller.queries.status().warnings


async def events(world):
    found = await world.controller.event_log.events(0, None, 0)
    return [one.message for one in found if one.subject == "spark2"]


async def test_without_entries_nothing_is_kept(world, time):
    assert await seen(world, time, 20) == ()
    assert world.entries.wanted == {}
    assert world.controller.queries.status().entries == ()


async def test_a_change_of_the_endpoint_is_kept_from_the_next_look_on(world, time):
    await world.controller.gateways.listen(SPREAD, "me")
    assert [one.listening for one in world.controller.queries.status().entries] == [False], "it is wanted"
    assert await seen(world, time, 20) == ()
    expected = EntryOrder(host="0.0.0.0", port=8000, target="192.168.100.10", target_port=8000, tls=False)
    assert world.entries.wanted == {"spark2": expected}
    (one,) = world.controller.queries.status().entries
    assert one == WORKS.model_copy(update={"url": "http://10.0.0.2:8000/v1"})
    assert await events(world) == ["entry listening on spark2"]
    await world.controller.gateways.listen(ADDRESS, "me")
    await seen(world, time, 2)
    assert world.entries.wanted == {}
    assert world.controller.queries.status().entries == ()


async def test_an_entry_that_does_not_answer_is_named_within_15_s(world, time):
    await world.controller.gateways.listen(SPREAD, "me")
    await seen(world, time, 4)
    world.entries.reports["spark2"] = None
    assert await seen(world, time, AWAY_S - LOOK_S) == (), "a killed one is back in less"
    (warning,) = await seen(world, time, 15 - AWAY_S)
    assert "Clients do not reach http://10.0.0.2:8000/v1: " in warning
    assert "is spark2 up?" in warning
    world.entries.reports["spark2"] = WORKS
    assert await seen(world, time, 2) == ()


async def test_the_reason_of_an_entry_is_the_warning(world, time):
    trouble = "The gateway cannot listen on 0.0.0.0 port 8000: Address already in use. ollama (process 7) has the port."
    world.entries.reports["spark2"] = EntryReport(node="spark2", trouble=trouble)
    await world.controller.gateways.listen(SPREAD, "me")
    (warning,) = await seen(world, time, 14)
    assert trouble in warning
    assert (await events(world))[-1] == f"no entry on spark2: {trouble}"


async def test_the_end_of_the_process_before_is_an_event(world, time):
    await world.controller.gateways.listen(SPREAD, "me")
    await seen(world, time, 4)
    after = "it did not run for 3 s and was ended"
    world.entries.reports["spark2"] = WORKS.model_copy(update={"after": after})
    assert await seen(world, time, 4) == ()
    assert await events(world) == [
        "entry listening on spark2",
        f"entry listening on spark2; the one before: {after}",
    ]


async def test_a_new_controller_keeps_them(tmp_path, world, time):
    await world.controller.gateways.listen(SPREAD, "me")
    await seen(world, time, 2)
    again = world.restarted(clocks=time.clocks)
    again.gateways.address = SPREAD  # of the head's address file
    assert await seen(world, time, 4) == ()
    assert set(world.entries.wanted) == {"spark2"}
