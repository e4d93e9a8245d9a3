"""Changes and logs that admin keys choose on the page."""

from types import SimpleNamespace

import pytest
from control_values import deployment, plan
from controller_world import report

from sparkfleet.controlplane.page_changes import PAGE_LOAD_S, answered, carry_out, log_end
from sparkfleet.controlplane.state.demand_cache import LOAD_S
from sparkfleet.gateway.page.fleet_change import FleetChange, LogRequest
from sparkfleet.group.report import GroupPhase, RankReport
from sparkfleet.units import GIB


async def change(world, verb, **fields):
    asked = FleetChange(verb=verb, who="boss (page)", **fields)
    life = SimpleNamespace(controller=world.controller)
    return await answered(lambda controller: carry_out(controller, asked), life)


async def serving(world):
    generation = await world.put()
    await world.ready(generation)
    await world.look()
    return generation


async def test_a_node_is_drained_and_undrained(world):
    await world.look()
    assert "What runs there stays" in (await change(world, "drain", node="this")).done
    assert [(one.node, one.who) for one in world.store.drains.nodes()] == [("this", "boss (page)")]
    assert (await change(world, "undrain", node="this")).done == "this may be used again."
    assert world.store.drains.nodes() == ()
    assert (await change(world, "undrain", node="this")).what == "this is not drained."
    for verb in ("drain", "undrain"):  # the latter was "other is not drained"
        assert (await change(world, verb, node="other")).what == 'There is no node "other".'


async def test_a_group_is_drained_and_undrained(world):
    await serving(world)
    assert "it gets no new requests" in (await change(world, "drain", group="tiny/g1/0")).done
    assert [(one.name, one.who) for one in world.store.drains.groups()] == [("tiny/g1/0", "boss (page)")]
    assert (await change(world, "undrain", group="tiny/g1/0")).done == "tiny/g1/0 gets requests again."
    assert (await change(world, "undrain", group="tiny/g1/0")).what == "tiny/g1/0 is not drained."
    assert (await change(world, "drain", group="tiny/g4/0")).what == "There is no group tiny/g4/0."


async def test_a_deployment_stops_and_starts_with_the_plan_that_it_had(world):
    generation = await serving(world)
    before = world.store.deployments.desired()["tiny"]
    stopped = await change(world, "stop", deployment="tiny", generation=generation)
    assert "Generation 1 is kept" in stopped.done
    assert world.store.deployments.desired() == {}
    assert [one.name for one in world.controller.queries.stopped()] == ["tiny"]
    started = await change(world, "start", deployment="tiny", generation=generation)
    assert started.done == "tiny starts as generation 2, with the plan of generation 1."
    after = world.store.deployments.desired()["tiny"]
    assert (after.spec, after.plan, after.who) == (before.spec, before.plan, "boss (page)")
    assert world.controller.queries.stopped() == ()
    kinds = [(event.kind, event.message) for event in world.store.events.read()]
    assert ("unwanted", "deleted by boss (page)") in kinds
    assert ("wanted", "applied by boss (page)") in kinds


async def test_every_engine_is_started_again(world):
    await serving(world)
    assert "generation 2, at the first rung" in (await change(world, "restart", deployment="tiny")).done
    assert world.store.deployments.desired()["tiny"].groups == (("tiny", 2, 0),)


@pytest.mark.parametrize("verb", ["stop", "restart"])
async def test_a_generation_that_was_not_shown_is_not_changed(world, verb):
    await serving(world)
    refused = await change(world, verb, deployment="tiny", generation=7)
    assert "is at generation 1, the change was confirmed for generation 7" in refused.what
    assert "nothing was changed" in refused.means
    assert world.store.deployments.desired()["tiny"].generation == 1


@pytest.mark.parametrize("verb", ["stop", "restart", "start"])
async def test_an_unknown_deployment_is_named(world, verb):
    refused = await change(world, verb, deployment="nothing")
    assert '"nothing"' in refused.what
    assert refused.done == ""


async def test_what_runs_is_not_started_and_what_was_stopped_is_not_stopped(world):
    await serving(world)
    assert "is not a deployment that was stopped" in (await change(world, "start", deployment="tiny")).what
    await change(world, "stop", deployment="tiny")
    for verb in ("stop", "restart"):
        assert 'There is no deployment "tiny".' in (await change(world, verb, deployment="tiny")).what


async def test_a_plan_for_a_node_that_is_gone_is_refused(world):
    await serving(world)
    await change(world, "stop", deployment="tiny")
    world.controller.watch.reports = (world.controller.watch.reports[0].model_copy(update={"name": "new"}),)
    refused = await change(world, "start", deployment="tiny")
    assert refused.what == "The plan of tiny needs this, which the fleet does not have."
    assert world.store.deployments.desired() == {}


async def test_a_restart_that_would_wait_for_a_node_that_is_gone_without_end_is_refused_as_on_the_command_line(
    world,
):
    await serving(world)
    world.controller.watch.reports = (world.controller.watch.reports[0].model_copy(update={"name": "new"}),)
    refused = await change(world, "restart", deployment="tiny")
    assert refused.what == "The plan of tiny needs this, which the fleet does not have."
    assert world.store.deployments.desired()["tiny"].generation == 1


async def test_one_that_was_stopped_is_not_started_on_a_port_that_another_deployment_has_now(world):
    """It was started, and failed: the port was taken."""
    await world.put(engine="custom", port=5005)
    await change(world, "stop", deployment="tiny")
    await world.controller.commands.put(deployment("b"), plan("b", engine="custom", port=5005), "me")
    refused = await change(world, "start", deployment="tiny")
    assert refused.what == "b has port 5005 of this, which this generation of tiny needs."
    assert "`sparkfleet delete b`" in refused.do
    assert list(world.store.deployments.desired()) == ["b"]


async def test_one_that_was_stopped_is_not_started_on_the_port_of_the_gateway(world):
    """The gateway was moved there meanwhile: the engine was started, and could not listen."""
    await world.put(engine="custom", port=8000)
    await change(world, "stop", deployment="tiny")
    address = world.controller.gateways.address
    for host, refused in (("127.0.0.1", True), ("0.0.0.0", True), ("192.168.1.7", False)):
        world.controller.gateways.address = address.model_copy(
            update={"gateway_host": host, "gateway_port": 8000}
        )
        answer = await change(world, "start", deployment="tiny")
        what = "The gateway has port 8000 of this, which this generation of tiny needs."
        assert (answer.what == what) is refused, host


async def on_demand(world):
    spec = deployment(on_demand=True)
    desired, _ = await world.controller.commands.put(spec, plan(mid=10 * GIB), "me")
    await world.controller.reconcile()
    return desired.generation


async def test_one_on_demand_is_loaded_and_unloaded(world):
    generation = await on_demand(world)
    assert "starts once its memory is free" in (await change(world, "load", deployment="tiny")).done
    await world.controller.reconcile()
    assert await world.messages("load") == ["loaded by boss (page)"]
    await world.ready(generation)
    assert (await change(world, "load", deployment="tiny")).done == "No change: tiny is loaded."
    assert (await change(world, "unload", deployment="tiny")).done.startswith("tiny ends.")
    assert await world.messages("unload") == ["unloaded by boss (page)"]
    await world.controller.reconcile()
    assert (await change(world, "unload", deployment="tiny")).done == "No change: tiny is not loaded."


async def test_a_load_that_waits_lasts_without_the_page_and_is_taken_back(world):
    await on_demand(world)
    world.nodes.available = dict.fromkeys(world.nodes.available, 1 * GIB)
    for who in ("boss (page)", "me"):  # a command beside it, that ends, ends no wait of the page
        for_s = PAGE_LOAD_S if who == "boss (page)" else LOAD_S
        await world.controller.commands.load("tiny", who, for_s)
    await world.controller.reconcile()
    (one,) = world.controller.queries.status().deployments
    assert (one.state, one.demand.loaded_by, world.apps.launches) == ("unloaded", "boss (page)", [])
    done = (await change(world, "unload", deployment="tiny")).done
    assert done == "The load by boss (page) is taken back: tiny starts for a request only."
    world.nodes.available = dict.fromkeys(world.nodes.available, 100 * GIB)
    await world.controller.reconcile()
    assert world.apps.launches == []


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_one_that_is_not_on_demand_or_of_another_generation_is_neither_loaded_nor_unloaded(world, verb):
    await serving(world)
    assert "tiny is not on demand" in (await change(world, verb, deployment="tiny")).what
    refused = await change(world, verb, deployment="tiny", generation=7)
    assert "the change was confirmed for generation 7" in refused.what
    assert (await change(world, verb, deployment="nothing")).what == 'There is no deployment "nothing".'


async def test_one_on_demand_that_was_stopped_starts_with_its_next_request(world):
    await on_demand(world)
    await change(world, "load", deployment="tiny")  # it is stopped before it starts
    await change(world, "stop", deployment="tiny")
    assert (
        "is on demand again: its next request starts it"
        in (await change(world, "start", deployment="tiny")).done
    )
    await world.controller.reconcile()
    assert world.apps.launches == []


@pytest.mark.parametrize("verb", ["drain", "stop", "load", "unload"])
async def test_a_change_without_its_name_is_refused(world, verb):
    assert "needs the name" in (await change(world, verb)).what


async def test_a_controller_that_waits_for_its_store_changes_nothing():
    async def work(controller):
        raise AssertionError

    assert "waits for its store" in (await answered(work, SimpleNamespace(controller=None))).what


async def log(world, read, **fields):
    asked = LogRequest(deployment="tiny", **fields)
    life = SimpleNamespace(controller=world.controller)
    return await answered(lambda controller: log_end(controller, asked, read), life)


async def test_the_last_lines_of_a_log_without_control_characters(world):
    await serving(world)
    ranks = (
        RankReport(rank=0, node="this", log_path="/logs/a"),
        RankReport(rank=1, node="far", log_path="/logs/b"),
    )
    await world.controller.intake.report(report(phase=GroupPhase.READY, ranks=ranks))
    asked = []

    async def read(node, path, limit):
        asked.append((node, path))
        return b"one\ntwo \x1b[2J\r\nthree \xff\n"

    found = await log(world, read, rank=1, lines=2)
    assert (found.node, found.path, found.log) == ("far", "/logs/b", "two \\x1b[2J\nthree \ufffd")
    assert asked == [("far", "/logs/b")]
    assert "no log yet for rank 2" in (await log(world, read, rank=2)).what

    async def gone(node, path, limit):
        return None

    assert (await log(world, gone)).what == "The log /logs/a on this cannot be read."
