"""Makes the page's view of the fleet from the controller's status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport, OnDemandStatus
from sparkfleet.controlplane.views.bench_words import bench_lines
from sparkfleet.controlplane.views.metrics_export import start_phase
from sparkfleet.controlplane.views.speculation_advice import advice_for, advice_words, running_rungs
from sparkfleet.gateway.page.fleet_view import (
    BandView,
    DeploymentView,
    EntryView,
    EventView,
    FleetView,
    GpuView,
    GroupView,
    LinkView,
    MemoryView,
    NodeView,
    OnDemandView,
    PlannedView,
    RailView,
    RejectedView,
    StoppedView,
)
from sparkfleet.group.report import GroupReport
from sparkfleet.perf.prediction import DECLARED, Band, Prediction
from sparkfleet.planner.report.explain.prefix_lines import prefix_words
from sparkfleet.planner.types.plan import Candidate, GroupPlan, Rung
from sparkfleet.specs.inventory import Inventory
from sparkfleet.telemetry.node_readings import NodeReadings, RailReading

MOST_EVENTS = 60
MOST_REJECTED = 40


def page_view(
    status: FleetStatus,
    inventory: Inventory,
    events: Collection[Event],
    at: float,
    stopped: Collection[Desired] = (),
) -> FleetView:
    """The view. `events`: the last ones, oldest first; `at`: Unix seconds; `stopped`: deployments that were deleted."""
    drained = status.drained_nodes
    up = {
        (node.name, rail.netdev): bool(rail.up)
        for node in status.nodes
        for rail in (node.readings.rails if node.readings else ())
    }
    return FleetView(
        at=at,
        fleet=status.fleet,
        sparkfleet=status.sparkfleet,
        endpoint=status.endpoint,
        entries=tuple(EntryView.model_validate(one, from_attributes=True) for one in status.entries),
        certificate_expires_at=status.certificate.expires_at if status.certificate else None,
        drain_s=inventory.timeouts.drain_s,
        nodes=tuple(
            _node(one, is_head=one.name == inventory.head, drained=one.name in drained)
            for one in status.nodes
        ),
        links=_links(inventory, up),
        deployments=tuple(_deployment(one, status, at) for one in status.deployments),
        paused=status.paused,
        stopped=_stopped(status, stopped),
        events=tuple(
            EventView.model_validate(one, from_attributes=True)
            for one in list(events)[: -MOST_EVENTS - 1 : -1]
        ),
        trouble=status.trouble,
        warnings=(*status.warnings, *status.gateway_troubles),
    )


def _stopped(status: FleetStatus, stopped: Collection[Desired]) -> tuple[StoppedView, ...]:
    """Deployments of which nothing runs any more."""
    present = {one.name for one in status.deployments}
    return tuple(
        StoppedView(
            name=one.name,
            generation=one.generation,
            nodes=tuple(sorted(planned_nodes(one))),
            on_demand=one.spec.on_demand,
        )
        for one in stopped
        if one.name not in present
    )


def planned_nodes(one: Desired) -> set[str]:
    """Nodes of the first rung of each of its groups."""
    return {node for group in one.plan.groups for node in group.ladder[0].candidate.shape.nodes}


def _links(inventory: Inventory, up: Mapping[tuple[str, str], bool]) -> tuple[LinkView, ...]:
    return tuple(
        LinkView(
            nodes=link.nodes,
            switch=link.switch,
            rails=len(link.rails),
            up=sum(
                all(up.get((node, end.netdev), False) for node, end in zip(link.nodes, rail, strict=True))
                for rail in link.rails
            ),
        )
        for link in inventory.links
    )


def _node(one: NodeReport, *, is_head: bool, drained: bool) -> NodeView:
    found = one.readings
    return NodeView(
        name=one.name,
        joined=one.joined,
        head=is_head,
        drained=drained,
        memory_total=one.memory_total,
        memory_available=one.memory_available,
        memory_unaccounted=found.memory.unaccounted if found else None,
        gpus=_gpus(found) if found else (),
        rails=tuple(map(_rail, found.rails)) if found else (),
    )


def _gpus(found: NodeReadings) -> tuple[GpuView, ...]:
    return tuple(
        GpuView(
            power_w=gpu.power_w,
            temperature_c=gpu.temperature_c,
            busy=None if gpu.utilization_percent is None else gpu.utilization_percent / 100,
            clock_mhz=gpu.sm_clock_mhz,
        )
        for gpu in found.slow.gpus or ()
    )


def _rail(one: RailReading) -> RailView:
    rdma = one.rdma_counters
    return RailView(
        netdev=one.netdev,
        up=bool(one.up),
        received=(one.received or 0) + (rdma.rx_bytes if rdma else 0),
        sent=(one.sent or 0) + (rdma.tx_bytes if rdma else 0),
    )


def _deployment(one: DeploymentStatus, status: FleetStatus, at: float) -> DeploymentView:
    return DeploymentView(
        name=one.name,
        state=one.state,
        detail=one.detail,
        generation=one.generation,
        since=one.since,
        objective=one.plan.objective if one.plan else "",
        groups=tuple(_group(one, report, status) for report in one.groups),
        on_demand=_on_demand(one, at) if one.on_demand else None,
        speculation=advice_words(advice_for(one)),
        bench=tuple(bench_lines(running_rungs(one), status.bench)),
        rejected=tuple(
            RejectedView.model_validate(each, from_attributes=True)
            for each in (one.plan.rejected[:MOST_REJECTED] if one.plan else ())
        ),
    )


def _on_demand(one: DeploymentStatus, at: float) -> OnDemandView:
    use = one.demand or OnDemandStatus()
    at_rest = one.plan.groups if one.plan is not None and one.instead is None and not one.groups else ()
    passed = (*one.passed, *((),) * len(at_rest))
    return OnDemandView(
        in_flight=use.in_flight,
        waiting_since=None if use.waits_s is None else at - use.waits_s,
        loaded_by=use.loaded_by,
        idle_s=use.idle_s,
        unused_since=None if use.unused_s is None else at - use.unused_s,
        ends_at=None if use.ends_in_s is None else at + use.ends_in_s,
        start_s=use.start_s,
        instead=one.instead,
        planned=tuple(
            _planned(group.rung_at(len(left))) for group, left in zip(at_rest, passed, strict=False)
        ),
    )


def _planned(rung: Rung) -> PlannedView:
    candidate = rung.candidate
    return PlannedView(
        nodes=candidate.shape.nodes,
        shape=str(candidate.shape),
        how=candidate.how,
        model=_model(candidate),
        context=candidate.context,
        predicted=_bands(rung.prediction),
    )


def _model(candidate: Candidate) -> str:
    """The Hub id of a checkpoint, or the name of its directory."""
    return PurePosixPath(candidate.model).name if candidate.model.startswith("/") else candidate.model


def _group(one: DeploymentStatus, report: GroupReport, status: FleetStatus) -> GroupView:
    base = GroupView(
        name=report.name,
        state=report.phase.value,
        drained=any(report.name == group.name for group in status.drained_groups),
        detail=f"no report for {report.silent_s:.0f} s: this is from before"
        if report.silent_s
        else report.detail,
        since=report.since,
        node=report.node,
        ranks=tuple(rank.node for rank in report.ranks),
        engine=report.engine,
        rung=report.rung + 1,
        phase=start_phase(report) or "",
        share=report.step.share if report.step else None,
        running=report.running,
        waiting=report.waiting,
        tokens=report.tokens,
        drafted=report.drafted,
        accepted=report.accepted,
        started_s=report.started_s,
        memory=tuple(MemoryView(node=node, bytes=held) for node, held in status.memory_of(report.group)),
        measured=report.measured,
    )
    index = one.index_of(report.group)
    if one.plan is None or index is None or index >= len(one.plan.groups):
        return base
    passed = one.passed[index] if index < len(one.passed) else ()
    return _with_plan(base, one.plan.groups[index], report.rung, passed)


def _with_plan(base: GroupView, plan: GroupPlan, at: int, passed: tuple[str, ...]) -> GroupView:
    rung = plan.rung_at(at)
    return base.model_copy(
        update={
            "ranks": base.ranks or rung.candidate.shape.nodes,
            "how": rung.candidate.how,
            "shape": str(rung.candidate.shape),
            "model": _model(rung.candidate),
            "context": rung.candidate.context,
            "rungs": len(plan.ladder),
            "reason": rung.reason,
            "passed": passed,
            "slots": rung.candidate.concurrency,
            "predicted": _bands(rung.prediction),
            "notes": (*rung.notes, *prefix_words(rung)),
        }
    )


def _bands(one: Prediction) -> dict[str, BandView]:
    bands: dict[str, Band | None] = {
        "memory_bytes": one.memory_bytes_per_rank,
        "ttft_ms": one.ttft_ms,
        "decode_tps": one.decode_tps_per_request,
        "total_tps": one.decode_tps_aggregate,
        "prefill_tps": one.prefill_tps,
        "check_ttft_ms": one.check_ttft_ms,
        "check_decode_tps": one.check_decode_tps,
    }
    return {
        name: BandView(low=band.low, mid=band.mid, high=band.high, provenance=_provenance(band))
        for name, band in bands.items()
        if band is not None
    }


def _provenance(band: Band) -> str:
    return "declared" if band.basis == DECLARED else band.provenance.value
