"""A fleet of many nodes and groups with every reading: a real controller and its page, and a gateway's counters."""

from collections.abc import Iterable
from pathlib import Path

from control_values import deployment, plan
from controller_world import World
from observed_values import NODE, predicted

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.gateway.access.allowed_paths import POSTED, path_label
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.hostfacts.network.rdma import ReadRdmaCounters
from sparkfleet.telemetry.catalogue import PLACES, START_PHASES, UNLOADS, WAITING
from sparkfleet.telemetry.metrics import GatewayMetrics
from sparkfleet.telemetry.node_readings import RESOURCES
from sparkfleet.telemetry.samples import sample

MEASURED = {
    "ttft_ms": 250.0, "decode_tps": 20.0, "text_perplexity": 2.0, "own_perplexity": 1.5, "own_agreement": 0.9,
    "accepted_share": 0.6,
}  # fmt: skip
CAUSES = ("known", "memory", "port", "missing", "flag", "away", "transient", "unknown")
STATUSES = (200, 400, 401, 404, 413, 429, 499, 502, 503)
KINDS = ("client_gone", "engine_lost", "not_ready", "invalid_request", "rate_limited", "too_large")


class ManyNodes:
    """Nodes that report everything that a Spark with two rails does."""

    def __init__(self, names):
        self.reports = tuple(_node(name) for name in names)
        self.boots = {"this": "first"}

    async def look(self, names=None):
        """All of them: none is silent."""
        return self.reports

    async def sweep(self, names, listed):
        """Nothing to do."""
        return ()

    async def keep_copy(self, names, copy):
        """All of them keep it."""
        return dict.fromkeys(names, "")


def _node(name: str) -> NodeReport:
    readings, (rail,) = NODE.readings, NODE.readings.rails
    counted = tuple(part.partition("/")[2] for part in ReadRdmaCounters.NAMES[2:])
    counters = rail.rdma_counters.model_copy(update={"others": dict.fromkeys(counted, 7)})
    rails = tuple(
        rail.model_copy(
            update={
                "netdev": f"enp1s0f{end}np{end}",
                "rdma": f"rocep1s0f{end}",
                "rdma_counters": counters,
                "errors": {"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0},
            }
        )
        for end in (0, 1)
    )
    slow = readings.slow.model_copy(update={"disks": dict.fromkeys(PLACES, readings.slow.disks["root"])})
    pressure = {resource: {"some": 0.1, "full": 0.0} for resource in RESOURCES}
    found = readings.model_copy(update={"rails": rails, "slow": slow, "pressure": pressure})
    return NODE.model_copy(update={"name": name, "readings": found})


def _report(name: str, phase: GroupPhase) -> GroupReport:
    return GroupReport(
        deployment=name, generation=1, replica=0, phase=phase, node="spark1", since=1.0, drafted=100.0, accepted=60.0,
        measured=MEASURED if phase is GroupPhase.READY else {}, running=3, waiting=1,
    )  # fmt: skip


async def large_fleet(directory: Path, nodes: int, groups: int) -> World:
    """A controller with so many nodes, and deployments of one group each, all ready and all with a past."""
    world = World(directory)
    world.nodes = ManyNodes([f"spark{index}" for index in range(1, nodes + 1)])
    world.restarted()
    for index in range(groups):
        name = f"model-{index}"
        wanted = predicted(plan(name=name, rungs=3))
        await world.controller.commands.put(deployment(name), wanted, "me")
    await world.look()
    await world.controller.reconcile()
    for index in range(groups):
        name = f"model-{index}"
        world.apps.become(name, 1, "running")
        await world.controller.intake.report(_report(name, GroupPhase.READY))
        _past(world, name)
    return world


def _past(world: World, name: str) -> None:
    """Counters as after weeks: every outcome, cause and phase."""
    metrics = world.metrics
    for outcome in ("ready", "adopted", "failed"):
        metrics.starts.labels(name, outcome).inc()
    for cause in CAUSES:
        metrics.restarts.labels(name, cause).inc()
    for phase in START_PHASES:
        metrics.start_phase.labels(name, phase).observe(3)
    for reason in UNLOADS:
        metrics.unloads.labels(name, reason).inc()
    metrics.start.labels(name).observe(60)
    metrics.canary_failures.labels(name).inc()


def busy_gateway(models: Iterable[str], keys: int, paths: Iterable[str] = POSTED) -> GatewayMetrics:
    """A gateway's counters after weeks: every model on some paths with every status, and every key on every model."""
    metrics, models = GatewayMetrics(), tuple(models)
    metrics.show(lambda: [sample(WAITING, name, value=2) for name in models])
    for name in models:
        for path in paths:
            for status in STATUSES:
                metrics.requests[name, path_label(path), str(status)] += 1
        for kind in KINDS:
            metrics.errors[name, kind] += 1
        for one in (metrics.ttft, metrics.itl, metrics.duration, metrics.start_wait):
            one[name].observe(0.1)
        metrics.in_flight[(name,)] = 3
        metrics.retries[(name,)] += 1
        metrics.chunks[(name,)] += 500
        for kind in ("input", "output"):
            metrics.tokens[name, kind] += 500
        for key in range(keys):
            metrics.key_requests[f"key-{key}", name] += 1
            for kind in ("input", "output"):
                metrics.key_tokens[f"key-{key}", name, kind] += 500
    return metrics
