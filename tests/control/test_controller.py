import asyncio

import pytest
from control_values import GIB, deployment, inventory, plan
from prometheus_client import generate_latest

from sparkfleet.control import controller as module
from sparkfleet.control import heard, node_watch, publisher, recovery
from sparkfleet.control.controller import Controller
from sparkfleet.control.fake_apps import FakeApps
from sparkfleet.control.nodes import FakeNodes
from sparkfleet.control.order import orders_for
from sparkfleet.control.status import GroupPhase, GroupReport, NodeReport
from sparkfleet.control.store import Store
from sparkfleet.engines.signatures import Cause, Diagnosis
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.observe.metrics import ControlMetrics


class World:
    """A controller on fakes, and what it did to them."""

    def __init__(self, tmp_path):
        self.store = Store(tmp_path / "s.db")
        self.apps = FakeApps()
        self.metrics = ControlMetrics()
        self.inventory_nodes = ("this",)
        self.nodes = FakeNodes({"this": 100 * GIB})
        self.controller = self.restarted()

    def restarted(self):
        self.controller = Controller(
            fleet="home",
            store=self.store,
            apps=self.apps,
            metrics=self.metrics,
            endpoint="http://127.0.0.1:8000/v1",
            orders_of=lambda desired, rungs: orders_for(self.inventory(), desired, rungs),
            nodes=self.nodes,
            here=NodeReport(name="this", joined=True, boot=self.nodes.boots["this"]),
        )
        return self.controller

    def inventory(self):
        names = self.inventory_nodes
        return inventory(*names, cable=len(names) > 1)

    async def put(self, **fields):
        high, rungs = fields.pop("high", 1.0), fields.pop("rungs", 1)
        desired, _ = await self.controller.put(deployment(), plan(high=high, rungs=rungs, **fields), "me")
        await self.controller.reconcile()
        return desired.generation

    async def ready(self, generation, replica=0):
        self.apps.become("tiny", generation, "running")
        await self.controller.report(report(generation, replica=replica, phase=GroupPhase.READY))
        await self.controller.reconcile()

    async def look(self):
        """What the controller's watch over the nodes does every two seconds."""
        await self.controller._watch.look()

    async def table(self):
        return await self.controller.table(known=-1, wait_s=0)


def report(generation=1, **fields):
    fields = {"replica": 0, "phase": GroupPhase.STARTING, "node": "this", "since": 1.0, **fields}
    return GroupReport(deployment="tiny", generation=generation, **fields)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.store.close()


async def test_from_wanted_to_ready(world):
    assert await world.put() == 1
    assert [order.generation for order in world.apps.orders] == [1]
    assert (await world.table()).models["tiny"].state == "starting"
    await world.ready(1)
    entry = (await world.table()).models["tiny"]
    assert (entry.state, entry.apps) == ("ready", ("tiny--g1-0",))
    assert world.controller.status().deployments[0].state == "ready"


async def test_serve_says_running_but_no_group_has_spoken(world):
    await world.put()
    world.apps.become("tiny", 1, "running")
    await world.controller.reconcile()
    assert (await world.table()).models == {} or (await world.table()).models["tiny"].state == "starting"


async def test_the_old_one_serves_until_the_new_one_is_ready(world):
    await world.put()
    await world.ready(1)
    assert await world.put(concurrency=8) == 2
    assert (await world.table()).models["tiny"].apps == ("tiny--g1-0",)
    assert world.controller.status().deployments[0].state == "updating"
    await world.ready(2)
    assert (await world.table()).models["tiny"].apps == ("tiny--g2-0",)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_while_it_is_replaced_a_group_keeps_what_is_known_of_it(world):
    await world.put(context=512)
    await world.ready(1)
    await world.put(context=1024)
    groups = (await world.table()).models["tiny"].groups
    assert [(group.app, group.ready, group.context) for group in groups] == [
        ("tiny--g2-0", False, 1024),
        ("tiny--g1-0", True, 512),
    ]
    await world.ready(2)
    groups = (await world.table()).models["tiny"].groups
    assert [(group.app, group.ready, group.context) for group in groups] == [("tiny--g2-0", True, 1024)]


async def test_without_memory_for_both_the_old_one_goes_first(world):
    await world.put()
    await world.ready(1)
    world.nodes.available["this"] = 1 * GIB
    await world.put(concurrency=8, high=2.0 * GIB)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert ("tiny", 2, 0) not in world.apps.apps
    world.apps.finish()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_a_new_generation_that_fails_leaves_the_old_one_and_says_so(world):
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    await world.controller.report(report(2, phase=GroupPhase.FAILED, detail="no such flag"))
    world.apps.become("tiny", 2, "failed", "Serve's words")
    await world.controller.reconcile()
    status = world.controller.status().deployments[0]
    assert status.state == "failed"
    assert "1 still serves" in status.detail
    assert (await world.table()).models["tiny"].apps == ("tiny--g1-0",)
    failed = [
        event for event in await world.controller.events(0, "tiny", 0) if event.message == "no such flag"
    ]
    assert {event.kind for event in failed} == {"failed"}


async def test_delete_retires_and_forgets(world):
    await world.put()
    await world.ready(1)
    await world.controller.remove("tiny", "me")
    await world.controller.reconcile()
    assert (await world.table()).models == {}
    assert world.controller.status().deployments[0].state == "stopping"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.controller.status().deployments == ()


async def test_delete_of_something_that_is_not_there_names_what_is(world):
    await world.put()
    with pytest.raises(ControlError, match="'nope'") as caught:
        await world.controller.remove("nope", "me")
    assert "tiny" in caught.value.do


async def test_pause_stops_everything_and_forgets_nothing(world):
    await world.put()
    await world.ready(1)
    world.controller.pause()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert set(world.store.desired()) == {"tiny"}


async def test_a_restarted_controller_keeps_quiet_until_groups_have_reported(world):
    """The gateways must not be told that a running model is not ready, only because nobody has said so yet."""
    await world.put()
    await world.ready(1)
    world.restarted()
    await world.controller.reconcile()
    assert (await world.table()).version == 0
    await world.ready(1)
    assert (await world.table()).models["tiny"].state == "ready"


async def test_a_group_that_fell_silent_is_not_ready(world, monkeypatch):
    await world.put()
    await world.ready(1)
    monkeypatch.setattr(heard, "STALE_S", 0.0)
    monkeypatch.setattr(publisher, "SETTLE_S", 0.0)
    await world.controller.reconcile()
    assert (await world.table()).models["tiny"].state == "starting"


async def test_a_newer_table_wakes_a_waiting_gateway(world):
    known = (await world.table()).version
    waiting = asyncio.create_task(world.controller.table(known, wait_s=30))
    await asyncio.sleep(0)
    await world.put()
    assert "tiny" in (await asyncio.wait_for(waiting, 5)).models


async def test_an_event_wakes_a_waiting_watcher(world):
    waiting = asyncio.create_task(world.controller.events(0, None, wait_s=30))
    await asyncio.sleep(0)
    await world.put()
    assert (await asyncio.wait_for(waiting, 5))[0].kind == "wanted"


async def test_keys_reach_the_table_and_leave_it(world):
    text, key = await world.controller.keys.create("laptop")
    await world.controller.reconcile()
    assert (await world.table()).keys == (key,)
    assert text.startswith("sk-sf-")
    with pytest.raises(ControlError, match="already"):
        await world.controller.keys.create("laptop")
    await world.controller.keys.revoke("laptop")
    await world.controller.reconcile()
    assert (await world.table()).keys == ()
    with pytest.raises(ControlError, match="no key"):
        await world.controller.keys.revoke("laptop")


async def test_metrics_and_targets_of_a_ready_group(world):
    await world.put()
    world.apps.become("tiny", 1, "running")
    await world.controller.report(
        report(phase=GroupPhase.READY, engine="vllm", url="http://127.0.0.1:4000", started_s=3.0,
               measured={"ttft_ms": 10.0, "decode_tps": 50.0})
    )  # fmt: skip
    await world.controller.reconcile()
    value = world.metrics.registry.get_sample_value
    assert (
        value("sparkfleet_group_state", {"deployment": "tiny", "group": "tiny/g1/0", "state": "ready"}) == 1
    )
    assert value("sparkfleet_starts_total", {"deployment": "tiny", "outcome": "ready"}) == 1
    assert [t["targets"] for t in world.controller.targets("127.0.0.1:1")] == [
        ["127.0.0.1:1"],
        ["127.0.0.1:4000"],
    ]
    assert [m.value for m in world.store.measurements("tiny")] == [10.0, 50.0]


async def test_a_round_that_fails_is_written_down_and_the_next_one_works(world, monkeypatch):
    calls = []

    async def fails_once():
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("Serve is away")
        return ()

    monkeypatch.setattr(world.apps, "list", fails_once)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    running = asyncio.create_task(world.controller.run())
    try:
        events = await asyncio.wait_for(world.controller.events(0, None, wait_s=5), 6)
        assert "Serve is away" in events[0].message
        while len(calls) < 2:
            await asyncio.sleep(0.01)
    finally:
        running.cancel()


async def test_a_watch_over_the_nodes_that_failed_is_taken_up_again(world, monkeypatch):
    """Ray may be away for a moment. Nobody else would say that a node has left or come back."""
    calls = []
    look = world.nodes.look

    async def fails_twice():
        calls.append(1)
        if len(calls) <= 2:
            raise ConnectionError("Ray is away")
        return await look()

    monkeypatch.setattr(world.nodes, "look", fails_twice)
    monkeypatch.setattr(node_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    running = asyncio.create_task(world.controller.run())
    try:
        events = await asyncio.wait_for(world.controller.events(0, None, wait_s=5), 6)
    finally:
        running.cancel()
    assert [(event.subject, event.message) for event in events] == [("this", "this joined the fleet")]
    assert len(calls) >= 3


async def test_ranks_of_nobody_are_swept_before_a_deploy(world):
    await world.put()
    assert world.nodes.swept == [frozenset({("tiny", 1)})]


async def test_acceptance_and_memory_are_shown_to_prometheus(world):
    await world.put()
    await world.controller.report(report(phase=GroupPhase.READY, drafted=120.0, accepted=90.0))
    await world.controller.reconcile()
    await world.look()
    page = generate_latest(world.metrics.registry).decode()
    assert 'sparkfleet_draft_tokens{deployment="tiny",group="tiny/g1/0",kind="accepted"} 90.0' in page
    assert 'sparkfleet_node_joined{node="this"} 1.0' in page
    assert 'sparkfleet_node_memory_available_bytes{node="this"}' in page


def diagnosed(cause="memory", **fields):
    diagnosis = Diagnosis(cause=Cause(cause), says="too little memory")
    return report(phase=GroupPhase.FAILED, was_starting=True, diagnosis=diagnosis, **fields)


async def test_a_rung_that_does_not_start_is_followed_by_the_next(world):
    await world.put(rungs=2)
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 1]
    events = await world.controller.events(0, "tiny", 0)
    assert any(event.kind == "fallback" and "too little memory" in event.message for event in events)
    assert "out of memory" in world.store.failures()[0].words
    await world.ready(1)
    assert world.controller.status().deployments[0].state == "ready"


async def test_a_restarted_controller_knows_the_rung(world):
    await world.put(rungs=2)
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    world.apps.apps.clear()
    await world.restarted().reconcile()
    assert world.apps.orders[-1].rung == 1


async def test_after_the_last_rung_it_has_failed_and_applying_again_tries_again(world):
    await world.put()
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    await world.controller.reconcile()
    status = world.controller.status().deployments[0]
    assert status.state == "failed"
    assert len(world.apps.orders) == 1
    assert await world.put() == 2


async def test_what_starts_after_all_is_not_held_against_it(world):
    await world.put()
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    assert world.store.failures()
    await world.put()
    await world.ready(2)
    assert world.store.failures() == ()


@pytest.mark.parametrize("cause", ["transient", "port"])
async def test_what_may_pass_is_not_held_against_it(world, cause):
    await world.put(rungs=2)
    await world.look()
    for _ in range(2):
        await world.controller.report(report())
        await world.controller.report(diagnosed(cause))
        world.apps.become("tiny", 1, "failed")
        await world.controller.reconcile()
        await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 0, 1]
    assert world.store.failures() == ()


async def test_what_was_not_started_is_not_held_against_it(world):
    """Somebody else had the memory that it needs, for now."""
    await world.put(rungs=2)
    refused = Diagnosis(cause=Cause.MEMORY, says="each rank needs 90 GiB", began=False)
    await world.controller.report(diagnosed().model_copy(update={"diagnosis": refused}))
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 1]
    assert world.store.failures() == ()


@pytest.mark.parametrize(
    ("cause", "ends"), [("known", False), ("flag", False), ("memory", True), ("unknown", True)]
)
async def test_what_hangs_on_more_than_the_candidate_is_held_against_it_for_a_day(world, cause, ends):
    await world.put(rungs=2)
    await world.controller.report(diagnosed(cause))
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    (failure,) = world.store.failures()
    assert (failure.until is not None) == ends


async def test_why_each_rung_was_left_is_told(world):
    await world.put(rungs=3)
    for cause in ("known", "memory"):
        await world.controller.report(diagnosed(cause))
        world.apps.become("tiny", 1, "failed")
        await world.controller.reconcile()
        await world.controller.reconcile()
    await world.ready(1)
    (passed,) = world.controller.status().deployments[0].passed
    assert passed == ("known issue: too little memory", "out of memory: too little memory")


async def test_a_restarted_controller_goes_on_counting_how_often_it_fell(world):
    await world.put()
    for number in range(recovery.BREAKER_FAILURES):
        await world.ready(1)
        await world.controller.report(report(phase=GroupPhase.FAILED))
        if number == 1:
            world.restarted()
            await world.look()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_falls_of_long_ago_do_not_count(world, monkeypatch):
    monkeypatch.setattr(recovery, "BREAKER_S", 0.0)
    await world.put()
    for _ in range(recovery.BREAKER_FAILURES):
        await world.ready(1)
        await world.controller.report(report(phase=GroupPhase.FAILED))
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "running"


async def test_the_end_of_a_rung_that_was_left_is_not_counted_on_the_next(world):
    await world.put(rungs=2)
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    assert world.store.rungs("tiny", 1)[0].rung == 1
    await world.controller.report(report())
    await world.controller.report(diagnosed())
    assert world.store.rungs("tiny", 1)[0].restarts == 0
    await world.controller.report(report(rung=1))
    await world.controller.report(diagnosed(rung=1))
    assert world.store.rungs("tiny", 1)[0].restarts == 1


async def test_a_restarted_controller_goes_on_counting_starts_that_fail(world):
    """Serve goes on with one that was ready."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        world.restarted()
        await world.look()
        await world.controller.report(report())
        await world.controller.report(diagnosed())
    await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 1]


async def test_what_comes_up_and_falls_again_and_again_is_stopped(world):
    await world.put()
    for _ in range(recovery.BREAKER_FAILURES):
        await world.ready(1)
        await world.controller.report(report(phase=GroupPhase.FAILED))
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert world.controller.status().deployments[0].state == "failed"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.apps.apps == {}


async def test_a_restarted_controller_knows_what_did_not_start(world):
    await world.put()
    await world.controller.report(diagnosed())
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    world.apps.apps.clear()
    world.restarted()
    await world.look()
    await world.controller.reconcile()
    assert len(world.apps.orders) == 1
    assert world.controller.status().deployments[0].state == "failed"
    assert await world.put() == 2, "applying the same file again tries again"
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_a_restarted_controller_knows_what_came_up_and_fell_again_and_again(world):
    await world.put()
    for _ in range(recovery.BREAKER_FAILURES):
        await world.ready(1)
        await world.controller.report(report(phase=GroupPhase.FAILED))
    await world.controller.reconcile()
    world.apps.finish()
    world.restarted()
    await world.look()
    await world.controller.reconcile()
    assert world.apps.apps == {}
    assert world.controller.status().deployments[0].state == "failed"
    assert await world.put(concurrency=8) == 2, "a changed file is another wish"
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_a_restarted_controller_does_not_let_a_group_fail_to_start_for_ever(world):
    """It has not seen the group ready; Serve, which has, goes on starting it."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    world.restarted()
    await world.look()
    for _ in range(recovery.RESTARTS):
        await world.controller.reconcile()
        await world.controller.report(report())
        await world.controller.report(diagnosed())
    await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 1]


async def test_a_node_that_does_not_come_back_is_left(world, monkeypatch):
    """Its group goes to the first rung that can do without it; one that cannot waits."""
    monkeypatch.setattr(recovery, "GONE_S", 0.0)
    two = plan(rungs=1)
    here = two.groups[0].ladder[0]
    shape = here.candidate.shape.model_copy(update={"nodes": ("that",)})
    there = here.model_copy(update={"candidate": here.candidate.model_copy(update={"shape": shape})})
    ladder = two.groups[0].model_copy(update={"ladder": (there, here)})
    world.inventory_nodes = ("this", "that")
    await world.controller.put(deployment(), two.model_copy(update={"groups": (ladder,)}), "me")
    await world.controller.reconcile()
    world.nodes.available["that"] = 100 * GIB
    world.nodes.away = {"that"}
    await world.look()
    await world.controller.reconcile()
    await world.controller.reconcile()
    assert [order.seats[0].node for order in world.apps.orders] == ["that", "this"]
    events = await world.controller.events(0, "tiny", 0)
    assert any("that is gone; next: this" in event.message for event in events)


async def test_a_group_that_was_ready_and_no_longer_starts_goes_down_its_ladder(world):
    """Serve says of it that it is starting, for ever: it ends only groups that have never started."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        await world.controller.reconcile()
        assert [order.rung for order in world.apps.orders] == [0]
        await world.controller.report(report())
        await world.controller.report(diagnosed())
    await world.controller.reconcile()
    assert [order.rung for order in world.apps.orders] == [0, 1]


async def test_a_group_that_was_ready_and_starts_at_no_rung_is_given_up(world):
    await world.put()
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        await world.controller.report(report())
        await world.controller.report(diagnosed())
    await world.controller.reconcile()
    assert world.controller.status().deployments[0].state == "failed"
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_a_sibling_that_is_ready_does_not_hide_one_that_was_given_up(world):
    await world.put(groups=2)
    await world.ready(1, replica=0)
    await world.controller.report(diagnosed(replica=1))
    world.apps.become("tiny", 1, "failed", replica=1)
    await world.controller.reconcile()
    await world.ready(1, replica=0)
    assert world.controller.status().deployments[0].state == "failed"
    assert await world.put(groups=2) == 2, "applying it again tries again"


async def test_memory_is_granted_once(world):
    """Two that are replaced at the same time, and room for one more: the second goes the other way."""
    for name in ("tiny", "other"):
        await world.controller.put(deployment(name), plan(name, high=4.0 * GIB), "me")
    await world.controller.reconcile()
    for name in ("tiny", "other"):
        world.apps.become(name, 1, "running")
        ready = report(phase=GroupPhase.READY).model_copy(update={"deployment": name})
        await world.controller.report(ready)
    await world.controller.reconcile()
    world.nodes.available["this"] = 6 * GIB
    for name in ("tiny", "other"):
        await world.controller.put(deployment(name), plan(name, high=4.0 * GIB, concurrency=8), "me")
    await world.controller.reconcile()
    statuses = sorted((d, g, app.status) for (d, g, _), app in world.apps.apps.items())
    assert len([one for one in statuses if one[2] == "retiring"]) == 1
    assert len([one for one in statuses if one[1] == 2]) == 1


async def test_a_gateway_that_has_gone_quiet_is_not_shown(world, monkeypatch):
    gateway = GatewayReport(replica="one", url="http://h:1", metrics_url="http://h:2", at=0.0)
    await world.controller.register_gateway(gateway)
    assert [one.replica for one in world.controller.status().gateways] == ["one"]
    monkeypatch.setattr(heard, "STALE_S", 0.0)
    assert world.controller.status().gateways == ()


async def test_who_is_told_ready_finds_it_in_the_table(world):
    """No round lies between the two: the next request after `apply` goes to the gateway at once."""
    await world.put()
    world.apps.become("tiny", 1, "running")
    await world.controller.reconcile()
    assert world.controller.status().deployments[0].state == "starting"
    await world.controller.report(report(phase=GroupPhase.READY))
    assert world.controller.status().deployments[0].state == "ready"
    assert (await world.table()).models["tiny"].state == "ready"
