"""Samples of the fleet's present state for Prometheus: deployments, groups, predictions, nodes, rails. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.gateway.routing_table import KeyEntry
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.hostfacts.gpu import SLOWDOWNS, GpuState
from sparkfleet.hostfacts.kernel_log import KernelLog
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import GroupPlan, Rung
from sparkfleet.telemetry import catalogue as c
from sparkfleet.telemetry.node_readings import NodeReadings, RailReading, SlowReadings
from sparkfleet.telemetry.samples import Sample, sample

DEPLOYMENT_STATES = ("ready", "starting", "updating", "failed", "stopping", "unloaded")
CANARY_READINGS = ("text_perplexity", "own_perplexity", "own_agreement", "accepted_share")
MHZ = 10**6


def start_phase(report: GroupReport) -> str | None:
    """The phase of a group's start, as `catalogue.START_PHASES` names it; None if it does not start."""
    if report.phase is GroupPhase.STARTING and report.step is not None:
        return report.step.phase
    return report.phase.value if report.phase in (*BEGINNING, GroupPhase.PROBING) else None


def fleet_samples(
    status: FleetStatus, to_run: Mapping[str, Desired], standings: Mapping[GroupKey, Standing]
) -> Iterator[Sample]:
    """Everything that the controller exports of the present state."""
    yield sample(c.CONTROLLER_TROUBLE, value=bool(status.trouble))
    yield sample(c.CONTROLLER_WARNINGS, value=len(status.warnings))
    yield sample(c.EVENTS, value=status.last_event)
    for deployment in status.deployments:
        yield from _deployment(deployment)
        for report in deployment.groups:
            yield from group_samples(report)
    for desired in to_run.values():
        for key, plan in desired.planned():
            yield from _planned(key, plan, standings.get(key, Standing()))
    for node in status.nodes:
        yield sample(c.NODE_DRAINED, node.name, value=node.name in status.drained_nodes)
        yield from node_samples(node)


def key_samples(keys: Iterable[KeyEntry]) -> Iterator[Sample]:
    """Expiry of each API key; keys without one are left out, and those of commands, for which no reminder is needed."""
    for key in keys:
        if key.limits.expires is not None and not key.passing:
            yield sample(c.KEY_EXPIRES, key.name, value=key.limits.expires)


def canary_samples(failures: Mapping[str, float]) -> Iterator[Sample]:
    """The last time, by deployment, at which an engine was stopped for its output."""
    for deployment, at in failures.items():
        yield sample(c.CANARY_FAILED, deployment, value=at)


def _deployment(one: DeploymentStatus) -> Iterator[Sample]:
    for state in DEPLOYMENT_STATES:
        yield sample(c.DEPLOYMENT_STATE, one.name, state, value=one.state == state)
    yield sample(c.DEPLOYMENT_GENERATION, one.name, value=one.generation)
    if one.plan is not None:
        yield sample(c.DEPLOYMENT_GROUPS, one.name, value=len(one.plan.groups))


def group_samples(report: GroupReport) -> Iterator[Sample]:
    """State, load, drafts, canary and measured speed of one group."""
    at = (report.deployment, report.name)
    for phase in GroupPhase:
        yield sample(c.GROUP_STATE, *at, phase.value, value=report.phase is phase)
    yield sample(c.GROUP_SINCE, *at, value=report.since)
    yield sample(c.GROUP_SILENT, *at, value=report.silent_s)
    yield sample(c.GROUP_RUNNING, *at, value=report.running)
    yield sample(c.GROUP_WAITING, *at, value=report.waiting)
    if (now := start_phase(report)) is not None:
        for name in c.START_PHASES:
            yield sample(c.GROUP_START_PHASE, *at, name, value=name == now)
        if report.step is not None and report.step.share is not None:
            yield sample(c.GROUP_START_SHARE, *at, value=report.step.share)
    if report.drafted:
        yield sample(c.DRAFTS, *at, "proposed", value=report.drafted)
        yield sample(c.DRAFTS, *at, "accepted", value=report.accepted)
    for reading in CANARY_READINGS:
        if reading in report.measured:
            yield sample(c.CANARY, *at, reading, value=report.measured[reading])
    if "ttft_ms" in report.measured:
        yield sample(c.MEASURED_TTFT, *at, value=report.measured["ttft_ms"] / 1e3)
    if "decode_tps" in report.measured:
        yield sample(c.MEASURED_DECODE, *at, value=report.measured["decode_tps"])


def _planned(key: GroupKey, plan: GroupPlan, standing: Standing) -> Iterator[Sample]:
    """Candidate and prediction of a group at its rung."""
    at = (key[0], name_of(key))
    rung = plan.rung_at(standing.rung)
    yield sample(c.GROUP_RUNG, *at, value=standing.rung + 1)
    yield sample(c.GROUP_RUNGS, *at, value=len(plan.ladder))
    yield sample(c.GROUP_GIVEN_UP, *at, value=standing.given_up)
    yield sample(c.GROUP_SLOTS, *at, value=rung.candidate.concurrency)
    yield _candidate(at, rung)
    yield from _predicted(at, rung.prediction)


def _candidate(at: tuple[str, str], rung: Rung) -> Sample:
    one = rung.candidate
    return sample(
        c.GROUP_INFO,
        *at,
        one.engine,
        one.engine_version,
        str(one.shape),
        one.quant,
        str(one.speculation),
        one.model,
        one.shape.nodes[0],
        value=1,
    )


def _predicted(at: tuple[str, str], one: Prediction) -> Iterator[Sample]:
    bands = (
        (c.PREDICTED_MEMORY, one.memory_bytes_per_rank, 1.0),
        (c.PREDICTED_TTFT, one.ttft_ms, 1e-3),
        (c.PREDICTED_DECODE, one.decode_tps_per_request, 1.0),
        (c.PREDICTED_TOTAL, one.decode_tps_aggregate, 1.0),
        (c.PREDICTED_PREFILL, one.prefill_tps, 1.0),
        (c.CHECK_TTFT, one.check_ttft_ms, 1e-3),
        (c.CHECK_DECODE, one.check_decode_tps, 1.0),
    )
    for metric, band, unit in bands:
        if band is not None:
            yield from (sample(metric, *at, bound, value=value * unit) for bound, value in _bounds(band))
    if one.decode_tps_per_request is not None:
        yield sample(c.PROVENANCE, *at, one.decode_tps_per_request.provenance.value, value=1)
    if one.accepted is not None:
        yield sample(c.PREDICTED_STEP, *at, value=one.accepted)


def _bounds(band: Band) -> Iterable[tuple[str, float]]:
    return zip(c.BOUNDS, (band.low, band.mid, band.high), strict=True)


def node_samples(node: NodeReport) -> Iterator[Sample]:
    """Readings of one node; those that are not known are left out."""
    yield sample(c.NODE_JOINED, node.name, value=node.joined)
    if node.memory_available is not None:
        yield sample(c.NODE_AVAILABLE, node.name, value=node.memory_available)
    if node.memory_total is not None:
        yield sample(c.NODE_TOTAL, node.name, value=node.memory_total)
    if node.readings is not None:
        yield from _readings(node.name, node.readings)


def _readings(node: str, found: NodeReadings) -> Iterator[Sample]:
    memory = found.memory
    yield sample(c.NODE_UNACCOUNTED, node, value=memory.unaccounted)
    yield sample(c.NODE_PAGE_CACHE, node, value=memory.page_cache)
    yield sample(c.NODE_SWAP, node, value=memory.swap_used)
    for resource, shares in found.pressure.items():
        for share, value in shares.items():
            yield sample(c.NODE_PRESSURE, node, resource, share, value=value)
    yield from _slow(node, found.slow)
    yield from chain.from_iterable(_rail(node, rail) for rail in found.rails)


def _slow(node: str, found: SlowReadings) -> Iterator[Sample]:
    if found.gpus or found.gpu_trouble:
        yield sample(c.GPU_READABLE, node, value=not found.gpu_trouble)
    for index, gpu in enumerate(found.gpus or ()):
        held = _is_held_down(gpu)
        readings = (
            (c.GPU_POWER, gpu.power_w, 1.0),
            (c.GPU_TEMPERATURE, gpu.temperature_c, 1.0),
            (c.GPU_CLOCK, gpu.sm_clock_mhz, MHZ),
            (c.GPU_MAX_CLOCK, gpu.most_sm_clock_mhz, MHZ),
            (c.GPU_BUSY, gpu.utilization_percent, 1e-2),
            (c.GPU_THROTTLED, None if held is None else float(held), 1.0),
        )
        for metric, value, unit in readings:
            if value is not None:
                yield sample(metric, node, str(index), value=value * unit)
    if found.temperature_c is not None:
        yield sample(c.NODE_TEMPERATURE, node, value=found.temperature_c)
    for place, space in found.disks.items():
        yield sample(c.NODE_DISK_FREE, node, place, value=space.free)
        yield sample(c.NODE_DISK_TOTAL, node, place, value=space.total)
    for one in found.ranks:
        key = (one.deployment, one.generation, one.replica)
        yield sample(c.RANK_MEMORY, one.deployment, name_of(key), str(one.rank), node, value=one.bytes)
    if found.kernel_log_readable is not None:
        yield sample(c.NODE_LOG_READABLE, node, value=found.kernel_log_readable)
    if found.kernel is not None:
        yield from _kernel_log(node, found.kernel, found.booted)


def _kernel_log(node: str, log: KernelLog, booted: float) -> Iterator[Sample]:
    yield sample(c.NODE_NO_MEMORY, node, value=log.out_of_gpu_memory)
    if log.out_of_gpu_memory_at is not None:
        yield sample(c.NODE_NO_MEMORY_LAST, node, value=round(booted + log.out_of_gpu_memory_at))
    for xid, times in Counter(log.xids).items():
        yield sample(c.NODE_XIDS, node, str(xid), value=times)
    for number, at in log.xids_at.items():
        yield sample(c.NODE_XID_LAST, node, number, value=round(booted + at))


def _is_held_down(gpu: GpuState) -> bool | None:
    """True if heat or the power supply holds a GPU's clock down; None if the driver does not report it."""
    return None if gpu.throttled is None else bool(SLOWDOWNS & set(gpu.throttled))


def _rail(node: str, rail: RailReading) -> Iterator[Sample]:
    yield sample(c.RAIL_UP, node, rail.netdev, value=bool(rail.up))
    yield sample(c.RAIL_LOST, node, rail.netdev, value=rail.is_lost)
    if rail.carrier_changes is not None:
        yield sample(c.RAIL_CARRIER, node, rail.netdev, value=rail.carrier_changes)
    for direction, value in (("received", rail.received), ("sent", rail.sent)):
        if value is not None:
            yield sample(c.RAIL_BYTES, node, rail.netdev, direction, value=value)
    for kind, value in rail.errors.items():
        yield sample(c.RAIL_ERRORS, node, rail.netdev, kind, value=value)
    if (counters := rail.rdma_counters) is not None:
        yield sample(c.RDMA_BYTES, node, rail.rdma, "received", value=counters.rx_bytes)
        yield sample(c.RDMA_BYTES, node, rail.rdma, "sent", value=counters.tx_bytes)
        for kind, value in counters.others.items():
            yield sample(c.RDMA_ERRORS, node, rail.rdma, kind, value=value)
