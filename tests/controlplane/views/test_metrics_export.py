"""Samples of the fleet's present state: every gauge of the catalogue, from a state that has all of it."""

from control_values import deployment, plan
from controller_world import diagnosed, report
from observed_values import NODE, predicted
from prometheus_client import generate_latest

from sparkfleet.controlplane.fleet_queries import CANARY_FAILURE_S
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.views.metrics_export import fleet_samples, node_samples
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.errors import Cause
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.group.report import WRONG_OUTPUT, GroupPhase
from sparkfleet.telemetry import catalogue as c
from sparkfleet.telemetry.catalogue import CATALOGUE


async def all_of_it(world):
    """Samples of a fleet with everything, by series and labels."""
    await world.controller.commands.put(deployment(), predicted(plan(rungs=2)), "me")
    await world.controller.reconcile()
    measured = {"ttft_ms": 250.0, "decode_tps": 20.0, "own_perplexity": 1.5}
    ready = report(
        phase=GroupPhase.READY, drafted=10.0, accepted=5.0, measured=measured, running=2, waiting=1
    )
    await world.controller.intake.report(ready)
    status = world.controller.queries.status().model_copy(update={"nodes": (NODE,)})
    step = StartupPhase(phase="loading", share=0.5)
    starting = ready.model_copy(
        update={"phase": GroupPhase.STARTING, "replica": 1, "step": step, "measured": {}}
    )
    one = status.deployments[0].model_copy(update={"groups": (ready, starting)})
    status = status.model_copy(update={"deployments": (one,)})
    standings = {("tiny", 1, 0): Standing(rung=1, given_up=True)}
    return {
        (s.metric.name, *s.labels): s.value
        for s in fleet_samples(status, world.store.deployments.desired(), standings)
    }


async def test_every_gauge_of_the_catalogue_is_exported(world):
    found = {name for name, *_ in await all_of_it(world)}
    counted = ("starts_total", "restarts_total", "canary_failures_total", "unloads_total")
    made = {f"sparkfleet_{name}" for name in (*counted, "build_info")}
    # Not of the fleet's status: test_a_key_shows_when_it_expires, test_a_restarted_controller_still_shows_when.
    made |= {"sparkfleet_key_expires_seconds", "sparkfleet_canary_failure_timestamp_seconds"}
    wanted = {s.name for s in CATALOGUE if s.page == "controller" and s.kind != "histogram"} - made
    assert found == wanted


async def test_the_values_have_the_units_of_the_catalogue(world):
    found = await all_of_it(world)

    def value(name, *labels):
        return found[f"sparkfleet_{name}", *labels]

    group = ("tiny", "tiny/g1/0")
    assert value("group_rung", *group) == 2
    assert value("group_given_up", *group) == 1
    assert value("predicted_ttft_seconds", *group, "high") == 1.2
    assert value("measured_ttft_seconds", *group) == 0.25
    assert value("prediction_info", *group, "calibrated") == 1
    assert value("group_start_phase", "tiny", "tiny/g1/1", "loading") == 1
    assert value("group_start_phase", "tiny", "tiny/g1/1", "compiling") == 0
    assert ("sparkfleet_group_start_phase", *group, "loading") not in found
    assert value("node_gpu_clock_hertz", "spark1", "0") == 2.4e9
    assert value("node_gpu_busy_ratio", "spark1", "0") == 0.96
    assert value("node_gpu_throttled", "spark1", "0") == 1
    assert value("node_gpu_readable", "spark1") == 1
    assert value("node_gpu_xids", "spark1", "79") == 2
    assert value("node_gpu_xid_timestamp_seconds", "spark1", "79") == 1060
    assert value("node_gpu_allocation_failure_timestamp_seconds", "spark1") == 1050
    assert value("rail_rdma_bytes_total", "spark1", "roce0", "sent") == 5


def test_a_node_that_is_away_shows_no_readings():
    found = {one.metric.name: one.value for one in node_samples(NodeReport(name="spark1", joined=False))}
    assert found == {"sparkfleet_node_joined": 0}


async def test_a_node_is_drained_or_not(world):
    """The alert about a lost node leaves out those that are."""
    await world.look()
    await world.controller.commands.drain("this", "me")
    (here,) = world.controller.queries.status().nodes
    other = here.model_copy(update={"name": "other"})
    status = world.controller.queries.status().model_copy(update={"nodes": (here, other)})
    found = {s.labels: s.value for s in fleet_samples(status, {}, {}) if s.metric is c.NODE_DRAINED}
    assert found == {("this",): 1, ("other",): 0}


async def test_restarts_have_their_cause(world):
    await world.put()
    await world.controller.intake.report(diagnosed("memory"))
    labels = {"deployment": "tiny", "cause": "memory"}
    assert world.metrics.registry.get_sample_value("sparkfleet_restarts_total", labels) == 1
    wrong = world.metrics.registry.get_sample_value(
        "sparkfleet_canary_failures_total", {"deployment": "tiny"}
    )
    assert wrong == 0


async def test_an_engine_with_wrong_output_is_counted(world):
    await world.put()
    await world.controller.intake.report(diagnosed("unknown", complaint="the output repeats '!' only"))
    assert (
        world.metrics.registry.get_sample_value("sparkfleet_canary_failures_total", {"deployment": "tiny"})
        == 1
    )


async def test_a_restarted_controller_still_shows_when_an_engine_was_stopped_for_its_output(world):
    """Its counter begins again at 0: an alert by that missed a failure right before the restart."""

    def shown():
        samples = world.controller.queries.samples()
        return {
            one.labels: one.value
            for one in samples
            if one.metric.name == "sparkfleet_canary_failure_timestamp_seconds"
        }

    await world.put()
    await world.controller.intake.report(diagnosed("memory"))
    assert shown() == {}
    await world.controller.intake.report(report(phase=GroupPhase.STARTING))
    words = f"{WRONG_OUTPUT}: the output repeats '!' only."
    await world.controller.intake.report(diagnosed("unknown", complaint="it repeats '!'", detail=words))
    (failed,) = (one for one in world.store.events.read() if words in one.message)
    world.restarted()
    assert shown() == {("tiny",): failed.at}
    world.store.now = lambda: failed.at + CANARY_FAILURE_S + 1
    assert shown() == {}


async def test_the_phases_of_a_start_are_timed(world):
    await world.put()
    for phase in (GroupPhase.STARTING, GroupPhase.STARTING, GroupPhase.PROBING, GroupPhase.READY):
        await world.controller.intake.report(report(phase=phase))
    await world.controller.intake.report(report(phase=GroupPhase.READY))

    def timed(phase):
        labels = {"deployment": "tiny", "phase": phase}
        return world.metrics.registry.get_sample_value("sparkfleet_start_phase_seconds_count", labels)

    assert (timed("starting"), timed("probing"), timed("ready")) == (1, 1, None)


async def test_what_is_deleted_is_no_longer_exported(world):
    await world.put()
    labels = {"deployment": "tiny", "state": "starting"}
    assert world.metrics.registry.get_sample_value("sparkfleet_deployment_state", labels) == 1
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    world.apps.finish()
    await world.controller.reconcile()
    assert world.metrics.registry.get_sample_value("sparkfleet_deployment_state", labels) is None


async def test_a_key_shows_when_it_expires(world):
    await world.controller.keys.create("forever")
    await world.controller.keys.create("guest", KeyLimits(expires=2e9))
    await world.controller.keys.create(
        "sparkfleet-ask-1", KeyLimits(expires=2e9)
    )  # of a command: nobody renews it
    page = generate_latest(world.metrics.registry).decode()
    assert [line for line in page.splitlines() if line.startswith("sparkfleet_key_expires")] == [
        'sparkfleet_key_expires_seconds{key="guest"} 2e+09'
    ]
    await world.controller.keys.revoke("guest")
    assert "sparkfleet_key_expires" not in generate_latest(world.metrics.registry).decode()


async def test_counters_of_a_deployment_begin_at_0(world):
    """The first increase of a series that begins at 1 is none for Prometheus: the alert of the first failure was missed."""
    await world.controller.commands.put(deployment(), plan(), "me")
    await world.controller.reconcile()
    page = generate_latest(world.metrics.registry).decode()
    assert 'sparkfleet_canary_failures_total{deployment="tiny"} 0.0' in page
    for cause in Cause:
        assert f'sparkfleet_restarts_total{{cause="{cause.value}",deployment="tiny"}} 0.0' in page
