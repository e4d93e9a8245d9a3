"""The fleet as a live view shows it: rows of nodes and groups, and their rates between readings. Pure: no terminal.

A reading that fails keeps the rows of the last good one, with their age: a view that empties itself shows least when it is
needed most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkfleet.controlplane.state.status import DeploymentStatus, NodeReport
from sparkfleet.controlplane.views.speculation_advice import advice_for, advice_words
from sparkfleet.fleet.deployments.status import FleetOverview
from sparkfleet.fleet.deployments.watch import step_detail, step_of_group
from sparkfleet.fleet.report.on_demand_words import use_and_command
from sparkfleet.fleet.report.status_lines import entry_state, state_words
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.report.explain.layout import band_ends

HISTORY = 60
"""Readings that a sparkline shows."""
WINDOW_S = 6.0
"""Seconds over which a rate is taken: groups report every few seconds, so that two near readings show 0 or a double step."""
BLOCKS = "▁▂▃▄▅▆▇█"


class NodeRow(NamedTuple):
    """One node. None: not read."""

    name: str
    state: str
    """`joined`, `drained`, `silent` (joined, and does not answer) or `gone`."""
    memory_available: int | None = None
    """Bytes."""
    memory_total: int | None = None
    busy: float | None = None
    """Of the GPU, 0 to 1."""
    power_w: float | None = None
    temperature_c: float | None = None
    rails_up: int = 0
    rails: int = 0
    entry: str = ""
    """Its address of the endpoint, with the state of it; "" if it has none."""
    reached: bool = True
    """False if clients of that address do not reach the gateway."""

    @property
    def memory_used(self) -> float | None:
        """Share of the memory that is not available, 0 to 1."""
        if not self.memory_total or self.memory_available is None:
            return None
        return 1 - self.memory_available / self.memory_total


class GroupRow(NamedTuple):
    """One group."""

    name: str
    deployment: str
    replica: int
    state: str
    generation: int | None = None
    """None if no group of the deployment runs."""
    detail: str = ""
    """Step of its start, or the reason for its state."""
    rung: int = 1
    """Place in its ladder, from 1: what was planned first."""
    where: str = ""
    """Its shape: nodes and TP."""
    tps: float | None = None
    """Output tokens per second; None if its engine does not count them, or before two readings."""
    history: Sequence[float] = ()
    """The last rates, oldest first."""
    running: int = 0
    counts_connections: bool = False
    """True for a custom workload: `running` are open connections, as its requests are not counted."""
    slots: int = 0
    """Requests at once that it was planned for; 0: not known."""
    waiting: int = 0
    """In its engine's queue; the first group of a deployment also has those that wait at the gateway."""
    memory: int | None = None
    """Bytes that its fullest rank takes, as measured; None before that."""
    acceptance: float | None = None
    """Share of draft tokens that its engine accepted since it started; None without speculation."""
    measured_tps: float | None = None
    """Of one stream, measured at its start."""
    predicted: str = ""
    """Band of the same by the plan."""
    on_demand: str = ""
    """Present use of what is on demand, with the command that changes it; "" for anything else."""
    speculation: Sequence[str] = ()
    """Its draft on its deployment's own requests, with the words for the file; empty if no other depth is clearly faster."""


class LiveView(NamedTuple):
    """The whole fleet at one time."""

    fleet: str
    endpoint: str = ""
    condition: str = "up"
    trouble: Sequence[str] = ()
    """Lines: the fact, its meaning, the remedy. Empty if the last reading was good."""
    age_s: float = 0.0
    """Seconds since the reading that the rows are from."""
    tps: float | None = None
    """Of all groups that count tokens."""
    running: int = 0
    """Requests; a custom workload's are not counted."""
    waiting: int = 0
    """At the gateway and in the queues of engines."""
    nodes: Sequence[NodeRow] = ()
    groups: Sequence[GroupRow] = ()
    paused: bool = False
    """See `FleetStatus.paused`."""


class LiveReadings:
    """Readings of one fleet, of which the latest gives the rows and earlier ones the rates."""

    def __init__(self) -> None:
        self._counted: dict[str, deque[tuple[float, float]]] = {}
        self._history: dict[str, deque[float]] = {}
        self._last: tuple[float, LiveView] | None = None

    def add(self, found: FleetOverview, now: float) -> LiveView:
        """The view after another reading. `now`: seconds of a clock that only goes forward."""
        if found.up:
            view = self._view(found, now)
            self._last = (now, view)
            return view
        trouble = (
            ("The fleet is down: nothing serves. `sparkfleet up` starts it.",)
            if found.trouble is None
            else tuple(filter(None, (found.trouble.what, found.trouble.means, found.trouble.do)))
        )
        at, last = self._last or (now, LiveView(found.status.fleet, nodes=tuple(_nodes(found))))
        return last._replace(condition=found.condition.value, trouble=trouble, age_s=now - at)

    def _view(self, found: FleetOverview, now: float) -> LiveView:
        status = found.status
        drained = {one.name for one in status.drained_groups}
        groups = tuple(
            self._group(deployment, group, now, drained=group.name in drained)._replace(
                waiting=group.waiting + (0 if at else status.queued(deployment.name)),
                memory=max((held for _, held in status.memory_of(group.group)), default=None),
            )
            for deployment in status.deployments
            for at, group in enumerate(deployment.groups)
        )
        names = {group.name for group in groups}
        for kept in (self._counted, self._history):
            for name in kept.keys() - names:
                del kept[name]
        waiting = tuple(
            GroupRow(
                one.name,
                one.name,
                0,
                state_words(one),
                detail=one.detail,
                waiting=status.queued(one.name),
                on_demand=use_and_command(one),
            )
            for one in status.deployments
            if not one.groups
        )
        rates = [group.tps for group in groups if group.tps is not None]
        return LiveView(
            fleet=status.fleet,
            endpoint=status.endpoint,
            trouble=tuple(filter(None, (status.trouble, *status.warnings, *status.gateway_troubles))),
            tps=sum(rates) if rates else None,
            running=sum(group.running for group in groups if not group.counts_connections),
            waiting=sum(group.waiting for group in status.groups)
            + sum(one.waiting for one in status.gateways),
            nodes=tuple(_nodes(found)),
            groups=(*groups, *waiting),
            paused=found.status.paused,
        )

    def _group(
        self, deployment: DeploymentStatus, group: GroupReport, now: float, *, drained: bool
    ) -> GroupRow:
        rung = deployment.rung_of(group)
        candidate = rung.candidate if rung else None
        band = rung.prediction.check_decode_tps if rung and group.phase is GroupPhase.READY else None
        rate = self._rate(group, now)
        history = self._history.setdefault(group.name, deque(maxlen=HISTORY))
        history.append(rate or 0.0)
        return GroupRow(
            name=group.name,
            deployment=deployment.name,
            replica=group.replica,
            state="drained" if drained and group.phase is GroupPhase.READY else group.phase.value,
            generation=group.generation,
            detail=_detail(group),
            rung=group.rung + 1,
            where=str(candidate.shape) if candidate else group.node,
            tps=rate,
            history=tuple(history),
            running=group.running,
            counts_connections=group.counts_connections,
            slots=(candidate.concurrency or 0) if candidate else 0,
            acceptance=group.accepted / group.drafted if group.drafted else None,
            measured_tps=group.measured.get("decode_tps"),
            predicted=band_ends(band) if band else "",
            on_demand=use_and_command(deployment),
            speculation=_faster_draft(deployment, group),
        )

    def _rate(self, group: GroupReport, now: float) -> float | None:
        if group.tokens is None:
            self._counted.pop(group.name, None)
            return None
        counted = self._counted.setdefault(group.name, deque())
        if counted and group.tokens < counted[-1][1]:
            counted.clear()  # another engine, whose counter began at 0
        counted.append((now, group.tokens))
        while len(counted) > 2 and now - counted[1][0] >= WINDOW_S:
            counted.popleft()
        seconds = now - counted[0][0]
        return (group.tokens - counted[0][1]) / seconds if seconds > 0 else None


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as blocks, the highest of them as a full one. All zero: the lowest blocks."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return BLOCKS[0] * len(shown)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(len(BLOCKS) * value / top))] for value in shown)


def bar(share: float, width: int) -> str:
    """A share, 0 to 1, as a bar of `width` characters."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def _detail(group: GroupReport) -> str:
    if group.silent_s:
        return f"no report for {group.silent_s:.0f} s"
    if group.phase in (*BEGINNING, GroupPhase.PROBING):
        return group.detail or " ".join(filter(None, (step_of_group(group).value, step_detail(group))))
    return "" if group.phase is GroupPhase.READY else group.detail


def _faster_draft(deployment: DeploymentStatus, group: GroupReport) -> tuple[str, ...]:
    advice = advice_for(deployment.model_copy(update={"groups": (group,)}))
    return advice_words(tuple(one for one in advice if one.best is not None))


def _nodes(found: FleetOverview) -> Iterator[NodeRow]:
    drained = found.status.drained_nodes
    entries = {one.node: one for one in found.status.entries}
    for node in found.status.nodes:
        row = _node(node, node.name in drained, known=found.up)
        if (entry := entries.get(node.name)) is not None:
            row = row._replace(entry=f"{entry.url} · {entry_state(entry)}", reached=entry.reached)
        yield row


def _node(node: NodeReport, drained: bool, *, known: bool) -> NodeRow:
    here = "drained" if drained else "joined" if node.silent_s is None else "silent"
    state = "not known" if not known else here if node.joined else "gone"
    readings = node.readings
    gpu = next(iter(readings.slow.gpus or ()), None) if readings else None
    rails = readings.rails if readings else ()
    return NodeRow(
        name=node.name,
        state=state,
        memory_available=node.memory_available,
        memory_total=node.memory_total,
        busy=None if gpu is None or gpu.utilization_percent is None else gpu.utilization_percent / 100,
        power_w=gpu.power_w if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        rails_up=sum(bool(rail.up) for rail in rails),
        rails=len(rails),
    )
