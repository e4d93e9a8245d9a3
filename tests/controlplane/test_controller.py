import asyncio

import pytest
from control_values import deployment, plan
from controller_world import report
from prometheus_client import generate_latest

from sparkfleet.controlplane.policy.state import Now
from sparkfleet.controlplane.state import report_cache
from sparkfleet.controlplane.store_safety.copies import copy_database
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.group.report import GroupPhase
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.units import GIB


async def test_from_wanted_to_ready(world):
    assert await world.put() == 1
    assert [launch.generation for launch in world.apps.launches] == [1]
    assert (await world.table()).models["tiny"].state == "starting"
    await world.ready(1)
    entry = (await world.table()).models["tiny"]
    assert (entry.state, entry.apps) == ("ready", ("tiny--g1-0",))
    assert world.state == "ready"


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
    assert world.state == "updating"
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


async def test_of_two_generations_on_one_port_the_old_one_goes_first(world):
    custom = {"engine": "custom", "command": ("serve",), "port": 8000}
    await world.put(**custom)
    await world.ready(1)
    await world.put(**custom, concurrency=8)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert ("tiny", 2, 0) not in world.apps.apps
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 2, 0].status == "starting", "it waits for the port on its node"


async def test_a_new_generation_that_fails_leaves_the_old_one_and_says_so(world):
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    await world.controller.intake.report(report(2, phase=GroupPhase.FAILED, detail="no such flag"))
    world.apps.become("tiny", 2, "failed", "Serve's words")
    await world.controller.reconcile()
    status = world.controller.queries.status().deployments[0]
    assert status.state == "failed"
    assert "generation 1 serves" in status.detail
    assert (await world.table()).models["tiny"].apps == ("tiny--g1-0",)
    failed = [
        event
        for event in await world.controller.event_log.events(0, "tiny", 0)
        if event.message == "no such flag"
    ]
    assert {event.kind for event in failed} == {"failed"}


async def test_delete_retires_and_forgets(world):
    await world.put()
    await world.ready(1)
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert (await world.table()).models == {}
    assert world.state == "stopping"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.controller.queries.status().deployments == ()


async def test_the_end_of_a_group_is_one_event_although_serve_lists_it_as_running_for_a_moment(world):
    """`delete` printed it twice."""
    await world.put()
    await world.ready(1)
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    world.apps.become("tiny", 1, "running")
    await world.controller.reconcile()
    world.apps.finish()
    await world.controller.reconcile()
    events = await world.controller.event_log.events(0, "tiny", 0)
    ends = [event.message for event in events if event.kind == "retire"]
    assert ends == ["no longer wanted"]


async def test_delete_of_something_that_is_not_there_names_what_is(world):
    await world.put()
    with pytest.raises(ControlError, match='"nope"') as caught:
        await world.controller.commands.remove("nope", "me")
    assert "tiny" in caught.value.do


async def test_pause_stops_everything_and_forgets_nothing(world):
    await world.put()
    await world.ready(1)
    world.controller.commands.pause()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert set(world.store.deployments.desired()) == {"tiny"}


async def test_what_a_down_has_stopped_that_was_interrupted_runs_again_after_up(world):
    """`status` had nothing deployed, and `up` changed nothing: every group was stopped until the next restart."""
    await world.put()
    await world.ready(1)
    world.controller.commands.pause()
    await world.controller.reconcile()
    world.apps.finish()
    await world.controller.reconcile()
    shown = world.controller.queries.status()
    assert (shown.paused, shown.deployments) == (True, ())
    world.controller.commands.resume()
    await world.controller.reconcile()
    shown = world.controller.queries.status()
    assert (shown.paused, [one.name for one in shown.deployments]) == (False, ["tiny"])
    assert world.apps.apps["tiny", 1, 0].status == "starting"


async def test_an_event_wakes_a_waiting_watcher(world):
    waiting = asyncio.create_task(world.controller.event_log.events(0, None, wait_s=30))
    await asyncio.sleep(0)
    await world.put()
    assert (await asyncio.wait_for(waiting, 5))[0].kind == "wanted"


async def test_keys_reach_the_table_and_leave_it(world):
    text, key, _ = await world.controller.keys.create("laptop")
    await world.controller.reconcile()
    assert (await world.table()).keys == (key,)
    assert text.startswith("sk-sf-")
    with pytest.raises(ControlError, match="already") as refused:
        await world.controller.keys.create("laptop")
    assert "sparkfleet keys rotate laptop" in refused.value.do, "its clients need a text, not another name"
    await world.controller.keys.revoke("laptop")
    await world.controller.reconcile()
    assert (await world.table()).keys == ()
    with pytest.raises(ControlError, match="no key"):
        await world.controller.keys.revoke("laptop")


async def test_a_deployment_whose_keys_are_all_revoked_says_so_while_its_engine_is_ready(world):
    """It was plainly `ready`, and each request for it was refused."""
    await world.controller.keys.create("laptop")
    spec = deployment().model_copy(update={"keys": ("laptop", "phone")})
    desired, _ = await world.controller.commands.put(spec, plan(), "me")
    await world.controller.reconcile()
    await world.ready(desired.generation)
    (shown,) = world.controller.queries.status().deployments
    assert (shown.state, shown.detail) == ("ready", "")
    await world.controller.keys.revoke("laptop")
    (shown,) = world.controller.queries.status().deployments
    assert shown.state == "ready"
    assert "lists laptop, phone under `keys:`" in shown.detail
    assert "`sparkfleet keys create laptop`" in shown.detail


async def test_a_deployment_whose_keys_have_expired_is_named_while_its_engine_is_ready(world):
    """Expired keys counted as usable, so that nothing named the reason of every 401."""
    for name in ("laptop", "phone"):
        await world.controller.keys.create(name, KeyLimits(expires=86400.0))
    spec = deployment().model_copy(update={"keys": ("tablet", "laptop", "phone")})
    desired, _ = await world.controller.commands.put(spec, plan(), "me")
    await world.controller.reconcile()
    await world.ready(desired.generation)
    (shown,) = world.controller.queries.status().deployments
    assert shown.state == "ready"
    assert "lists tablet, laptop, phone under `keys:`" in shown.detail
    assert "laptop expired on 1970-01-02" in shown.detail
    assert "`sparkfleet keys limit laptop --expires 90d`" in shown.detail
    await world.controller.keys.limit("phone", KeyLimits())
    (shown,) = world.controller.queries.status().deployments
    assert shown.detail == ""


async def test_metrics_and_targets_of_a_ready_group(world):
    await world.put()
    world.apps.become("tiny", 1, "running")
    await world.controller.intake.report(
        report(phase=GroupPhase.READY, engine="vllm", url="http://127.0.0.1:4000", started_s=3.0,
               measured={"ttft_ms": 10.0, "decode_tps": 50.0})
    )  # fmt: skip
    await world.controller.reconcile()
    value = world.metrics.registry.get_sample_value
    assert (
        value("sparkfleet_group_state", {"deployment": "tiny", "group": "tiny/g1/0", "state": "ready"}) == 1
    )
    assert value("sparkfleet_starts_total", {"deployment": "tiny", "outcome": "ready"}) == 1
    assert [t["targets"] for t in world.controller.queries.targets("127.0.0.1:1")] == [
        ["127.0.0.1:1"],
        ["127.0.0.1:4000"],
    ]


async def test_a_clock_that_was_set_back_lets_ray_serve_look_at_its_actors_again(world):
    """Its health checks are due by the wall clock: an actor that died was not replaced for two hours."""
    moment = [1000.0, 1000.0]
    world.controller = world.restarted(clocks=lambda: Now(unix=moment[0], steady=moment[1]))
    for unix, steady, renewed in [(1, 1, 0), (3600, 1, 0), (-3, 1, 0), (-7200, 1, 1), (1, 1, 1), (-4, 2, 2)]:
        moment[0], moment[1] = moment[0] + unix, moment[1] + steady
        await world.controller.reconcile()
        assert world.apps.renewed == renewed
    first, _ = (event.message for event in world.store.events.read() if event.kind == "clock")
    assert first == "the clock of the head was set back by 7205 s: Ray Serve's controller is restarted"


async def test_ranks_of_nobody_are_swept_before_a_deploy(world):
    await world.put()
    assert world.nodes.swept == [frozenset({("tiny", 1, 0)})]
    assert world.nodes.swept_newest == {"tiny": 1}


async def test_what_a_deleted_group_left_is_swept_when_its_application_is_gone(world):
    """Serve ended its actor while it started its ranks: one ran on, on another node, until its lease was over."""
    await world.put()
    world.nodes.swept.clear()
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    await world.controller.reconcile()
    assert world.nodes.swept == [], "it may still be served while it drains"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.nodes.swept == [frozenset()]
    await world.controller.reconcile()
    assert len(world.nodes.swept) == 1


async def test_while_the_fleet_is_stopped_those_that_have_ended_are_not_gone(world):
    """Nodes remove files of deployments that are not among what is kept; `up` starts these again."""
    for name in ("first", "tiny"):
        await world.controller.commands.put(deployment(name), plan(name), "me")
    await world.controller.reconcile()
    world.controller.commands.pause()
    await world.controller.reconcile()
    apps = world.apps.apps
    for name in ("first", "tiny"):
        world.nodes.swept.clear()
        world.apps.apps = {mark: app for mark, app in world.apps.apps.items() if mark[0] != name}
        await world.controller.reconcile()
        ((kept),) = world.nodes.swept
        assert {group[0] for group in kept} == {mark[0] for mark in apps} - {name}


async def test_an_application_that_serve_does_not_list_for_a_moment_costs_nothing(world):
    await world.ready(await world.put())
    world.nodes.swept.clear()
    there, world.apps.apps = world.apps.apps, {}
    before = world.controller.fleet.apps
    world.controller.fleet.see_apps(await world.apps.list())
    assert [app.status for app in before] == ["running"]
    await world.controller._sweep_after(before)
    assert world.nodes.swept == []
    world.apps.apps = there


async def test_acceptance_and_memory_are_shown_to_prometheus(world):
    await world.put()
    await world.controller.intake.report(report(phase=GroupPhase.READY, drafted=120.0, accepted=90.0))
    await world.controller.reconcile()
    await world.look()
    page = generate_latest(world.metrics.registry).decode()
    assert 'sparkfleet_draft_tokens{deployment="tiny",group="tiny/g1/0",kind="accepted"} 90.0' in page
    assert 'sparkfleet_node_joined{node="this"} 1.0' in page
    assert 'sparkfleet_node_memory_available_bytes{node="this"}' in page


async def test_memory_is_granted_once(world):
    """Two that are replaced at the same time, and room for one more: the second goes the other way."""
    for name in ("tiny", "other"):
        await world.controller.commands.put(deployment(name), plan(name, high=4.0 * GIB), "me")
    await world.controller.reconcile()
    for name in ("tiny", "other"):
        world.apps.become(name, 1, "running")
        ready = report(phase=GroupPhase.READY).model_copy(update={"deployment": name})
        await world.controller.intake.report(ready)
    await world.controller.reconcile()
    world.nodes.available["this"] = 6 * GIB
    for name in ("tiny", "other"):
        await world.controller.commands.put(deployment(name), plan(name, high=4.0 * GIB, concurrency=8), "me")
    await world.controller.reconcile()
    statuses = sorted((d, g, app.status) for (d, g, _), app in world.apps.apps.items())
    assert len([one for one in statuses if one[2] == "retiring"]) == 1
    assert len([one for one in statuses if one[1] == 2]) == 1


async def test_a_gateway_that_has_gone_quiet_is_not_shown(world, monkeypatch):
    gateway = GatewayReport(replica="one", url="http://h:1", metrics_url="http://h:2", at=0.0)
    await world.controller.intake.register_gateway(gateway)
    assert [one.replica for one in world.controller.queries.status().gateways] == ["one"]
    monkeypatch.setattr(report_cache, "STALE_S", 0.0)
    assert world.controller.queries.status().gateways == ()


@pytest.mark.parametrize("names", [("this",), ("this", "that")])
async def test_a_node_that_left_the_inventory_is_named_and_holds_up_no_other_deployment(world, names):
    """Nothing of the fleet was started any more: each round ended with KeyError. On a fleet of one node the group was being
    placed for ever."""
    world.inventory_nodes = names
    lost = plan("lost")
    (group,) = lost.groups
    candidate = group.choice.candidate.model_copy(update={"shape": GroupShape(nodes=("gone",))})
    rung = group.choice.model_copy(update={"candidate": candidate})
    lost = lost.model_copy(update={"groups": (group.model_copy(update={"ladder": (rung,)}),)})
    await world.controller.commands.put(deployment("lost"), lost, "me")
    await world.controller.commands.put(deployment(), plan(), "me")
    for _ in range(3):
        await world.controller.round()
    assert [launch.deployment for launch in world.apps.launches] == ["tiny"]
    named = next(one for one in world.controller.queries.status().deployments if one.name == "lost")
    assert named.state == "failed"
    assert named.detail.startswith(
        "The plan of lost needs gone, which the fleet does not have. `sparkfleet apply`"
    )
    events = [one.kind for one in world.store.events.read() if one.deployment == "lost"]
    assert events == ["wanted", "waits"]
    await world.controller.commands.put(deployment("lost"), plan("lost"), "me")
    await world.controller.round()
    await world.controller.round()
    assert [launch.deployment for launch in world.apps.launches] == ["tiny", "lost"]
    assert not world.controller.fleet.pending.waiting


async def test_kv_on_the_disk_of_a_deployment_that_is_not_loaded_goes_with_it(world):
    spec = deployment("tiny", on_demand=True, kv_disk="10 GB")
    await world.controller.commands.put(spec, plan("tiny"), "me")
    await world.controller.commands.put(deployment("other"), plan("other"), "me")
    await world.controller.reconcile()
    world.nodes.swept.clear()
    await world.controller.reconcile()
    assert world.nodes.swept == []
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert len(world.nodes.swept) == 1
    assert world.nodes.keep_kv == frozenset()


async def test_a_start_keeps_the_kv_of_all_that_are_applied(world):
    await world.controller.commands.put(deployment("tiny", kv_disk="10 GB"), plan("tiny"), "me")
    await world.controller.reconcile()
    assert world.nodes.keep_kv == frozenset({"tiny"})
    await world.controller.commands.put(deployment("tiny"), plan("tiny"), "me")
    await world.controller.reconcile()
    assert world.nodes.keep_kv == frozenset()


async def test_copies_of_the_store_go_to_the_other_nodes_and_the_status_names_one_without(world, tmp_path):
    world.nodes.available["that"], world.nodes.boots["that"] = GIB, "first"
    name = "20261201T003000123456Z-change.db"
    (tmp_path / "backups").mkdir()
    copy_database(world.store.path, tmp_path / "backups" / name)
    world.nodes.refuses["that"] = "its disk is full"
    await world.look()
    await world.controller.copies.look()
    assert world.nodes.sent[0][0] == ("that",), "the head has its own"
    assert world.controller.queries.status().uncopied == {"that": "its disk is full"}
    del world.nodes.refuses["that"]
    world.restarted()
    await world.look()
    await world.controller.copies.look()
    await world.look()
    status = world.controller.queries.status()
    assert status.uncopied == {}
    assert [node.kept_copy and node.kept_copy.name for node in status.nodes] == [None, name]
