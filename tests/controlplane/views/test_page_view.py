"""The page's view of the fleet, from the controller's status."""

from control_values import deployment, inventory, plan
from controller_world import report
from observed_values import NODE, predicted

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import NodeReport, OnDemandStatus
from sparkfleet.controlplane.views.page_view import MOST_EVENTS, page_view
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.gateway.report import EndpointCertificate, EntryReport, GatewayReport
from sparkfleet.group.report import GroupPhase, RankReport
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.telemetry.node_readings import RailReading, SlowReadings
from sparkfleet.telemetry.rank_memory import RankMemory


async def status_of(world, **fields):
    asked = predicted(plan(rungs=2))
    asked = asked.model_copy(
        update={"rejected": (Rejection(what="TP=2", reason="slower", rule="tp2-slower"),)}
    )
    await world.controller.commands.put(deployment(env={"HF_TOKEN": "hf_secret"}), asked, "me")
    await world.controller.reconcile()
    await world.controller.intake.report(report(phase=GroupPhase.READY, **fields))
    return world.controller.queries.status()


async def test_a_group_has_its_plan_its_prediction_and_its_figures(world):
    status = await status_of(
        world,
        measured={"ttft_ms": 250.0, "decode_tps": 20.0},
        running=2,
        waiting=1,
        tokens=100.0,
        engine="vllm",
    )
    view = page_view(status, world.inventory(), (), 5.0)
    (one,) = view.deployments
    (group,) = one.groups
    assert (one.state, group.state, group.running, group.waiting, group.slots) == (
        "starting",
        "ready",
        2,
        1,
        4,
    )
    assert (group.rung, group.rungs, group.reason, group.tokens) == (1, 2, "the only one", 100.0)
    assert group.measured == {"ttft_ms": 250.0, "decode_tps": 20.0}
    band = group.predicted["check_decode_tps"]
    assert (band.low, band.mid, band.high, band.provenance) == (800.0, 1000.0, 1200.0, "calibrated")
    assert [(each.what, each.rule) for each in one.rejected] == [("TP=2", "tp2-slower")]


async def test_the_endpoints_addresses_are_those_of_the_status(world):
    entries = (
        EntryReport(node="spark2", url="http://10.0.0.2:8000/v1", listening=True, connections=3),
        EntryReport(node="spark3", url="http://10.0.0.3:8000/v1", listening=True, trouble="no way"),
        EntryReport(node="spark4", url="http://10.0.0.4:8000/v1"),
    )
    gateway = GatewayReport(
        replica="r", url="http://a", metrics_url="", at=1.0, trouble="the port is taken", external_trouble="no key",
        failing=("tiny/g1/0 counts as ready, and requests fail there",),
        certificate=EndpointCertificate(expires_at=9.0, sha256="00"),
    )  # fmt: skip
    changes = {"entries": entries, "gateways": (gateway,), "paused": True}
    status = (await status_of(world)).model_copy(update=changes)
    view = page_view(status, world.inventory(), (), 5.0)
    assert view.paused
    assert (view.endpoint, view.certificate_expires_at) == (status.endpoint, 9.0)
    assert [(one.url, one.reached, one.connections) for one in view.entries] == [
        ("http://10.0.0.2:8000/v1", True, 3),
        ("http://10.0.0.3:8000/v1", False, 0),
        ("http://10.0.0.4:8000/v1", False, 0),
    ]
    assert view.warnings == (
        "gateway: the port is taken",
        "external endpoint, asked by http://a: no key",
        "tiny/g1/0 counts as ready, and requests fail there",
    )


async def test_a_group_has_the_memory_of_each_rank_that_was_measured(world):
    status = await status_of(world)
    (running,) = status.deployments[0].groups
    nodes = tuple(
        NodeReport(
            name=name,
            joined=True,
            readings=NODE.readings.model_copy(
                update={"slow": SlowReadings(ranks=(RankMemory(**rank_of(running, rank), bytes=held),))}
            ),
        )
        for rank, (name, held) in ((1, ("b", 46 << 30)), (0, ("a", 47 << 30)))
    )
    view = page_view(status.model_copy(update={"nodes": (*nodes, NODE)}), world.inventory(), (), 5.0)
    (group,) = view.deployments[0].groups
    assert [(one.node, one.bytes) for one in group.memory] == [("a", 47 << 30), ("b", 46 << 30)]
    assert page_view(status, world.inventory(), (), 5.0).deployments[0].groups[0].memory == ()


def rank_of(group, rank):
    return {
        "deployment": group.deployment,
        "generation": group.generation,
        "replica": group.replica,
        "rank": rank,
    }


async def test_a_group_without_a_report_is_named(world):
    (one,) = (await status_of(world)).deployments
    silent = one.model_copy(update={"groups": (report(phase=GroupPhase.READY, silent_s=42.4),)})
    status = world.controller.queries.status().model_copy(update={"deployments": (silent,)})
    (group,) = page_view(status, world.inventory(), (), 5.0).deployments[0].groups
    assert (group.state, group.detail) == ("ready", "no report for 42 s: this is from before")


async def test_a_checkpoint_on_a_disk_is_named_without_its_path(world):
    status = await status_of(world)
    (one,) = status.deployments
    for model, shown in (("/models/mine/tiny-8b", "tiny-8b"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")):
        (ladder,) = one.plan.groups
        first = ladder.ladder[0]
        rung = first.model_copy(
            update={"candidate": first.candidate.model_copy(update={"model": model, "context": 4096})}
        )
        groups = (ladder.model_copy(update={"ladder": (rung,)}),)
        shown_by = one.model_copy(update={"plan": one.plan.model_copy(update={"groups": groups})})
        found = status.model_copy(update={"deployments": (shown_by,)})
        (group,) = page_view(found, world.inventory(), (), 5.0).deployments[0].groups
        assert (group.model, group.context) == (shown, 4096)


async def test_no_setting_of_a_deployment_is_in_it(world):
    view = page_view(await status_of(world), world.inventory(), (), 5.0)
    text = view.model_dump_json()
    assert "HF_TOKEN" not in text
    assert "hf_secret" not in text


async def test_a_start_shows_its_phase(world):
    status = await status_of(world)
    (one,) = status.deployments
    step = StartupPhase(phase="loading", share=0.4)
    starting = report(
        phase=GroupPhase.STARTING,
        step=step,
        ranks=(RankReport(rank=0, node="a"), RankReport(rank=1, node="b")),
    )
    status = status.model_copy(update={"deployments": (one.model_copy(update={"groups": (starting,)}),)})
    (group,) = page_view(status, world.inventory(), (), 5.0).deployments[0].groups
    assert (group.phase, group.share, group.ranks) == ("loading", 0.4, ("a", "b"))


async def test_a_node_has_its_readings(world):
    status = (await status_of(world)).model_copy(
        update={"nodes": (NODE, NodeReport(name="spark2", joined=False))}
    )
    first, second = page_view(status, world.inventory(), (), 5.0).nodes
    assert (first.gpus[0].power_w, first.gpus[0].busy) == (45.5, 0.96)
    assert (first.rails[0].received, first.rails[0].sent) == (3 + 6, 4 + 5)
    assert (second.joined, second.memory_total, second.gpus) == (False, None, ())


async def test_a_rail_is_up_if_both_ends_are(world):
    def nodes(*up):
        return tuple(
            NODE.model_copy(
                update={
                    "name": name,
                    "readings": NODE.readings.model_copy(
                        update={"rails": (RailReading(netdev="enp1s0f1np1", up=is_up),)}
                    ),
                }
            )
            for name, is_up in zip(("spark1", "spark2"), up, strict=True)
        )

    status, fleet = await status_of(world), inventory("spark1", "spark2", cable=True)
    for up, rails in (((True, True), 1), ((True, False), 0), ((True, None), 0)):
        (link,) = page_view(status.model_copy(update={"nodes": nodes(*up)}), fleet, (), 5.0).links
        assert (link.nodes, link.rails, link.up) == (("spark1", "spark2"), 1, rails)


async def test_the_last_events_come_first(world):
    events = [
        Event(id=n, at=1.0, deployment="", generation=0, subject="", kind="k", message="m")
        for n in range(1, 200)
    ]
    view = page_view(await status_of(world), world.inventory(), events, 5.0)
    assert [one.id for one in view.events] == list(range(199, 199 - MOST_EVENTS, -1))


async def test_a_drained_group_is_shown(world):
    await status_of(world)
    await world.controller.commands.drain_group(("tiny", 1, 0), "me")
    view = page_view(world.controller.queries.status(), world.inventory(), (), 5.0)
    assert [(group.name, group.drained) for one in view.deployments for group in one.groups] == [
        ("tiny/g1/0", True)
    ]


async def test_a_drained_node_and_a_deployment_that_was_stopped_are_shown(world):
    status = await status_of(world)
    await world.look()
    await world.controller.commands.drain("this", "me")
    view = page_view(
        world.controller.queries.status(), world.inventory(), (), 5.0, world.controller.queries.stopped()
    )
    assert ([one.drained for one in view.nodes], view.stopped) == ([True], ())
    await world.controller.commands.remove("tiny", "me")
    stopped = world.controller.queries.stopped()
    gone = world.controller.queries.status().model_copy(update={"deployments": ()})
    (one,) = page_view(gone, world.inventory(), (), 5.0, stopped).stopped
    assert (one.name, one.generation, one.nodes) == ("tiny", 1, ("this",))
    assert page_view(status, world.inventory(), (), 5.0, stopped).stopped == (), "its groups still end"


async def test_what_is_on_demand_has_its_use_in_times_and_its_plan_while_it_is_unloaded(world):
    spec = deployment(on_demand=True, idle=60)
    await world.controller.commands.put(spec, predicted(plan(rungs=2)), "me")
    await world.controller.reconcile()
    status = world.controller.queries.status()
    (one,) = status.deployments
    use = OnDemandStatus(waits_s=5.0, unused_s=20.0, ends_in_s=40.0, idle_s=60.0, start_s=9.0, loaded_by="me")
    left = one.model_copy(update={"demand": use, "passed": (("it did not start",),)})
    view = page_view(status.model_copy(update={"deployments": (left,)}), world.inventory(), (), 1000.0)
    shown = view.deployments[0].on_demand
    assert (shown.waiting_since, shown.unused_since, shown.ends_at) == (995.0, 980.0, 1040.0)
    assert (shown.idle_s, shown.start_s, shown.loaded_by) == (60.0, 9.0, "me")
    (planned,) = shown.planned
    second = one.plan.groups[0].ladder[1]
    assert (planned.nodes, planned.how) == (("this",), second.candidate.how), "the first rung was left"
    assert "memory_bytes" in planned.predicted
    runs = left.model_copy(update={"groups": (report(phase=GroupPhase.READY),)})
    view = page_view(status.model_copy(update={"deployments": (runs,)}), world.inventory(), (), 1000.0)
    assert view.deployments[0].on_demand.planned == ()
    await world.controller.commands.remove("tiny", "me")
    status, stopped = world.controller.queries.status(), world.controller.queries.stopped()
    (old,) = page_view(status, world.inventory(), (), 5.0, stopped).stopped
    assert old.on_demand
