"""A deployment on demand, through the controller: its states, its table, its events, and what survives a restart."""

import pytest
from control_values import deployment, plan
from controller_world import report

from sparkfleet.controlplane.page_changes import carry_out
from sparkfleet.controlplane.state.status import OnDemandStatus
from sparkfleet.errors import ControlError
from sparkfleet.gateway.page.fleet_change import FleetChange
from sparkfleet.gateway.report import GatewayReport, OnDemandUse
from sparkfleet.group.group_name import short_name
from sparkfleet.group.report import GroupPhase
from sparkfleet.telemetry.catalogue import UNLOADS
from sparkfleet.units import GIB


class Requests:
    """The gateway's reports of requests for `tiny`."""

    def __init__(self, world):
        self._world = world

    async def report(self, **fields):
        use = OnDemandUse(**fields)
        found = GatewayReport(replica="g", url="u", metrics_url="m", at=0.0, on_demand={"tiny": use})
        await self._world.controller.intake.register_gateway(found)
        await self._world.controller.reconcile()


@pytest.fixture
def requests(world):
    return Requests(world)


async def put(world, **fields):
    spec = deployment(on_demand=True, **fields)
    desired, _ = await world.controller.commands.put(spec, plan(mid=10 * GIB), "me")
    await world.controller.reconcile()
    return desired


def status(world):
    (found,) = world.controller.queries.status().deployments
    return found.state, found.detail


async def entry(world):
    return (await world.table()).models["tiny"]


async def test_it_is_listed_as_unloaded_and_a_request_starts_it(world, requests):
    await put(world)
    await requests.report(idle_s=5.0)
    assert (world.apps.launches, status(world)) == ([], ("unloaded", "its next request starts it"))
    listed = await entry(world)
    assert (listed.state, listed.on_demand, listed.awaits_start) == ("unloaded", True, True)
    await requests.report(in_flight=1, waiting=1)
    assert len(world.apps.launches) == 1
    assert (status(world)[0], (await entry(world)).awaits_start) == ("starting", True)
    await world.ready(1)
    assert ((await entry(world)).state, status(world)) == ("ready", ("ready", ""))
    assert await world.messages("load") == ["a request waits for it"]


async def test_without_requests_it_leaves_the_table_before_it_ends(world, requests):
    await put(world, idle=60)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await requests.report(idle_s=61.0, ready_s=300.0)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert (await entry(world)).state == "unloaded"
    assert status(world) == ("unloaded", "no request for 1 min; its next request starts it")
    assert await world.messages("unload") == ["no request for 1 min"]
    del world.apps.apps["tiny", 1, 0]
    await requests.report(in_flight=1, waiting=1, idle_s=0.0)
    assert len(world.apps.launches) == 2
    assert status(world)[0] == "starting", "the report of its life before does not count"


async def test_a_new_controller_adopts_it_if_it_runs_and_leaves_it_unloaded_if_not(world, requests):
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    world.restarted()
    await world.controller.reconcile()
    await world.controller.intake.report(report(1, phase=GroupPhase.READY))
    await world.controller.reconcile()
    assert (len(world.apps.launches), status(world)) == (1, ("ready", ""))
    world.apps.apps.clear()  # Ray has been started again
    world.restarted()
    await world.controller.reconcile()
    assert (len(world.apps.launches), status(world)[0]) == (1, "unloaded")


async def test_down_keeps_it_and_up_starts_nothing(world, requests):
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    world.controller.commands.pause()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    stopped = await entry(world)
    assert (stopped.state, stopped.awaits_start) == ("stopped", False), "a 404 is never tried again"
    world.apps.apps.clear()
    world.restarted()
    await world.controller.reconcile()
    assert status(world) == ("unloaded", "its next request starts it")


async def edited_in_vain(world, requests, **fields):
    """Generation 1 has served, and its edit does not start for a request that waits."""
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await world.controller.commands.unload("tiny", "me")
    await world.controller.reconcile()
    world.apps.apps.clear()
    made = plan(mid=10 * GIB, context=1024)
    await world.controller.commands.put(deployment(on_demand=True, **fields), made, "me")
    await requests.report(in_flight=1, waiting=1)
    await world.fails("flag", generation=2)


async def test_an_edit_that_does_not_start_leaves_its_requests_to_the_generation_before(world, requests):
    await edited_in_vain(world, requests)
    await world.controller.reconcile()
    assert [one.generation for one in world.apps.launches] == [1, 2, 1]
    assert status(world) == (
        "starting",
        "generation 2 did not start; generation 1, which served before, starts; `sparkfleet describe tiny` shows the reason",
    )
    waits = await entry(world)
    assert (waits.awaits_start, [group.context for group in waits.groups]) == (True, [512])
    await world.ready(1)
    served = await entry(world)
    assert (served.state, served.apps, len(served.groups)) == ("ready", ("tiny--g1-0",), 1)
    (found,) = world.controller.queries.status().deployments
    assert (found.state, found.detail) == ("failed", "generation 2 did not start; generation 1 serves")
    assert (found.instead, found.passed[0][0]) == (1, "refused setting: too little memory")


async def test_each_later_request_starts_the_generation_before_and_so_does_a_load(world, requests):
    await edited_in_vain(world, requests)
    await world.controller.reconcile()
    await world.ready(1)
    assert await world.controller.commands.unload("tiny", "me")
    await world.controller.reconcile()
    world.apps.apps.clear()
    await requests.report(idle_s=1.0)
    assert status(world) == (
        "unloaded",
        "unloaded by me; its next request starts generation 1, which served before: generation 2 did not start;"
        " `sparkfleet describe tiny` shows the reason, `sparkfleet apply FILE --retry` tries it again",
    )
    assert (await entry(world)).awaits_start
    world.restarted()  # also by a new controller
    await world.controller.commands.load("tiny", "me")
    await world.controller.reconcile()
    assert world.apps.launches[-1].generation == 1


async def test_if_neither_starts_requests_are_refused_and_an_unload_ends_with_that_state(world, requests):
    await edited_in_vain(world, requests)
    await world.controller.reconcile()
    await world.fails("flag", generation=1)
    await world.controller.reconcile()
    assert status(world)[0] == "failed"
    assert not (await entry(world)).awaits_start
    with pytest.raises(ControlError, match="did not start the last time"):
        await world.controller.commands.load("tiny", "me")
    await world.controller.commands.put(deployment(on_demand=True), plan(mid=9 * GIB), "me", retry=True)
    await world.controller.reconcile()
    assert (await entry(world)).awaits_start


async def test_down_up_and_delete_of_one_whose_edit_did_not_start(world, requests):
    await edited_in_vain(world, requests)
    await world.controller.reconcile()
    await world.ready(1)
    world.controller.commands.pause()
    await world.controller.reconcile()
    world.apps.apps.clear()
    world.restarted()
    await requests.report(idle_s=1.0)
    assert status(world)[0] == "unloaded"
    await requests.report(in_flight=1, waiting=1)
    assert world.apps.launches[-1].generation == 1
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    world.apps.apps.clear()
    await world.controller.reconcile()
    assert world.controller.queries.status().deployments == ()
    assert world.store.groups.standings() == {}


async def test_one_that_was_deleted_while_it_was_loaded_waits_for_a_request_when_it_is_applied_again(
    world, requests
):
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    world.apps.apps.clear()
    await put(world)
    await requests.report(idle_s=5.0)
    assert (len(world.apps.launches), status(world)) == (1, ("unloaded", "its next request starts it"))


async def test_one_that_is_no_longer_on_demand_starts(world, requests):
    await put(world)
    await world.controller.commands.put(deployment(), plan(mid=10 * GIB), "me")
    await world.controller.reconcile()
    assert len(world.apps.launches) == 1


@pytest.mark.parametrize(("free", "starts"), [(5 * GIB, 0), (20 * GIB, 1)])
async def test_one_whose_edit_ended_its_only_group_does_not_start_in_memory_that_another_has_now(
    world, requests, free, starts
):
    """No request waits, for this one or another: it is not loaded now, it is loaded still."""
    await put(world)
    await world.controller.commands.put(
        deployment("other", on_demand=True), plan("other", mid=10 * GIB), "me"
    )
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await requests.report(idle_s=1.0, ready_s=300.0)
    world.apps.become("other", 1, "running")
    world.nodes.available["this"] = 0
    await world.controller.commands.put(deployment(on_demand=True), plan(mid=10 * GIB, context=1024), "me")
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    world.apps.finish()
    world.nodes.available["this"] = free
    launches = len(world.apps.launches)
    await world.controller.reconcile()
    assert len(world.apps.launches) - launches == starts
    assert await world.messages("unload") == (["its memory was not free"] if not starts else [])


async def test_a_group_that_an_edit_adds_to_those_that_run_starts_when_its_memory_is_free(world, requests):
    """It started beside another one that was just starting there, whose memory was still free."""
    first = await put(world)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await requests.report(idle_s=1.0, ready_s=300.0)
    world.nodes.available["this"] = 5 * GIB
    more = first.plan.model_copy(update={"groups": first.plan.groups * 2})
    desired, _ = await world.controller.commands.put(deployment(on_demand=True), more, "me")
    await world.controller.reconcile()
    assert ("tiny", 1, 0) in desired.groups, "it is carried over"
    await world.controller.reconcile()
    assert len(world.apps.launches) == 1
    added = next(group for group in desired.groups if group != ("tiny", 1, 0))
    assert await world.messages("waits") == [
        f"{short_name(added)}: 10 GiB on this are needed, which is more than is free"
    ]
    world.nodes.available["this"] = 20 * GIB
    await world.controller.reconcile()
    assert len(world.apps.launches) == 2


async def test_a_person_loads_it_and_unloads_it(world, requests):
    await put(world)
    await world.controller.commands.load("tiny", "me")
    await world.controller.reconcile()
    assert await world.messages("load") == ["loaded by me"]
    await world.ready(1)
    await requests.report(idle_s=90.0, ready_s=0.5)
    assert await world.controller.commands.unload("tiny", "me", "req-1")
    assert await world.controller.commands.unload("tiny", "me", "req-1"), "the second try of the same request"
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert status(world) == ("unloaded", "unloaded by me; its next request starts it")
    assert await world.messages("unload") == ["unloaded by me"]
    assert not await world.controller.commands.unload("tiny", "me")
    del world.apps.apps["tiny", 1, 0]
    await requests.report(in_flight=1, waiting=1)
    assert len(world.apps.launches) == 2


async def test_its_use_has_the_seconds_that_a_status_shows(world, requests):
    """Its wait, its use, and the time until it ends; and the seconds of its last start once there was one."""

    def use():
        return world.controller.queries.status().named("tiny").demand

    await put(world, idle=60)
    assert use() == OnDemandStatus(idle_s=60.0), "no gateway has reported"
    await requests.report(in_flight=2, waiting=2)
    assert use().waits_s == pytest.approx(0, abs=5)
    assert (use().in_flight, use().ends_in_s, use().unused_s, use().start_s) == (2, None, None, None)
    await world.ready(1)
    await world.controller.intake.report(report(1, phase=GroupPhase.READY, started_s=212.0))
    await requests.report(in_flight=1, ready_s=1.0)
    assert (use().in_flight, use().waits_s, use().ends_in_s, use().start_s) == (1, None, None, 212.0)
    await requests.report(idle_s=20.0, ready_s=300.0)
    assert (use().unused_s, use().ends_in_s) == (20.0, 40.0)
    await requests.report(idle_s=500.0, ready_s=7.0)
    assert use().unused_s == pytest.approx(7, abs=5), "it was not there before"
    await put(world, idle=None)
    assert (use().ends_in_s, use().idle_s) == (None, None)
    assert use().unused_s is not None
    await world.controller.commands.put(deployment("always"), plan("always"), "me")
    assert world.controller.queries.status().named("always").demand is None


async def test_the_start_of_a_group_that_an_edit_has_replaced_counts_on(world, requests):
    """Found by the simulation (seed 480102): it was ended for another one after the seconds that the edit's start took."""
    await put(world, idle=60)
    await requests.report(in_flight=1, waiting=1)
    world.apps.become("tiny", 1, "running")
    await world.controller.intake.report(report(1, phase=GroupPhase.READY, started_s=212.0))
    await requests.report(in_flight=1, ready_s=1.0)
    again = deployment(on_demand=True, idle=60), plan(mid=10 * GIB), "me"
    await world.controller.commands.put(*again, retry=True)
    await world.controller.reconcile()
    world.apps.become("tiny", 2, "running")
    await world.controller.intake.report(report(2, phase=GroupPhase.READY, started_s=30.0))
    for _ in range(2):
        await world.controller.reconcile()
        world.apps.finish()
    assert {key: app.status for key, app in world.apps.apps.items()} == {("tiny", 2, 0): "running"}
    await world.controller.commands.put(deployment("b", on_demand=True), plan("b", mid=10 * GIB), "me")
    world.nodes.available["this"] = GIB
    waits = OnDemandUse(in_flight=1, waiting=1)
    for ready_s, ended in ((150.0, set()), (213.0, {"tiny"})):
        uses = {"tiny": OnDemandUse(in_flight=1, ready_s=ready_s), "b": waits}
        found = GatewayReport(replica="g", url="u", metrics_url="m", at=0.0, on_demand=uses)
        await world.controller.intake.register_gateway(found)
        await world.controller.reconcile()
        assert world.controller.fleet.pending.unloaded.keys() == ended


def unloads(world, reason):
    return world.metrics.registry.get_sample_value(
        "sparkfleet_unloads_total", {"deployment": "tiny", "reason": reason}
    )


async def test_its_ends_are_counted_by_reason_from_0_on(world, requests):
    await put(world, idle=60)
    assert [unloads(world, reason) for reason in UNLOADS] == [0] * len(UNLOADS)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await requests.report(idle_s=61.0, ready_s=300.0)
    del world.apps.apps["tiny", 1, 0]
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await requests.report(in_flight=1, ready_s=300.0)
    await world.controller.commands.unload("tiny", "me")
    assert {reason: unloads(world, reason) for reason in UNLOADS} == {
        "unused": 1, "other": 0, "no_memory": 0, "no_node": 0, "person": 1,
    }  # fmt: skip


async def test_what_is_not_on_demand_is_neither_loaded_nor_unloaded(world):
    await world.put()
    for command in (world.controller.commands.load, world.controller.commands.unload):
        with pytest.raises(ControlError, match="tiny is not on demand: it runs always"):
            await command("tiny", "me")
        with pytest.raises(ControlError, match='no deployment "huge"'):
            await command("huge", "me")


async def test_one_that_did_not_start_is_not_loaded_before_somebody_has_looked(world, requests):
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    for _ in range(3):
        await world.fails("flag")
    assert status(world)[0] == "failed"
    with pytest.raises(ControlError, match="did not start the last time"):
        await world.controller.commands.load("tiny", "me")
    await requests.report()
    change = FleetChange(verb="restart", deployment="tiny", who="boss (page)")
    await carry_out(world.controller, change)
    await world.controller.reconcile()
    assert (status(world)[0], len(world.apps.launches)) == ("starting", 2), "an admin has looked"


async def test_a_drained_group_that_is_unloaded_refuses_its_requests_and_starts_nothing(world, requests):
    await put(world, idle=60)
    await requests.report(in_flight=1, waiting=1)
    await world.ready(1)
    await world.controller.commands.drain_group(("tiny", 1, 0), "me")
    await requests.report(idle_s=61.0, ready_s=300.0)
    del world.apps.apps["tiny", 1, 0]
    await requests.report(idle_s=70.0)
    words = "tiny/g1/0 is drained; `sparkfleet undrain tiny/g1/0` lets its next request start it"
    listed = await entry(world)
    assert (listed.state, listed.awaits_start, listed.detail) == ("drained", False, words)
    assert status(world) == ("unloaded", words)
    with pytest.raises(ControlError, match="tiny/g1/0 is drained: it would get no request"):
        await world.controller.commands.load("tiny", "me")
    await world.controller.commands.undrain_group(("tiny", 1, 0), "me")
    await world.controller.reconcile()
    assert (await entry(world)).state == "unloaded"


async def test_what_waits_for_memory_ends_engines_of_nobody(world, requests):
    """After an end of Ray an engine on demand lives on with its lease, for 2 minutes, and nothing knows what it holds."""
    await put(world)
    world.nodes.available = dict.fromkeys(world.nodes.available, 1 * GIB)
    await requests.report(in_flight=1, waiting=1)
    assert (status(world)[0], world.apps.launches) == ("unloaded", [])
    assert world.nodes.swept == [frozenset()]
    await requests.report(in_flight=1, waiting=1)
    assert len(world.nodes.swept) == 1, "once for each reason"


async def test_while_it_waits_a_round_looks_only_at_nodes_that_answer(world, requests):
    """With a silent node each round took 5 s longer, and so did everything that concerned other nodes."""
    world.nodes.available = {"this": 5 * GIB, "b": 100 * GIB}
    world.nodes.boots["b"] = "first"
    await put(world)
    await requests.report(in_flight=1, waiting=1)
    assert world.nodes.looked[-1] is None, "before the first look it is not known which answer"
    await world.look()
    world.nodes.silent = {"b"}
    await world.look()
    world.nodes.looked.clear()
    await requests.report(in_flight=1, waiting=1)
    assert world.nodes.looked == [{"this"}]
    assert world.apps.launches == []
    world.nodes.available["this"] = 100 * GIB
    await requests.report(in_flight=1, waiting=1)
    assert len(world.apps.launches) == 1
