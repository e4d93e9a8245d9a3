"""Writes the status of a fleet as lines of text that fit 80 columns, but for long names. Pure: no terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from sparkfleet.controlplane.policy.ladder import cost_words
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.controlplane.views.speculation_advice import advice_for
from sparkfleet.fleet.deployments.watch import step_detail, step_of_group
from sparkfleet.fleet.report.on_demand_words import use_words
from sparkfleet.gateway.report import EntryReport
from sparkfleet.group.group_name import short_name
from sparkfleet.group.measured_rate import unknown_rate_words
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.perf.prediction import DECLARED, Band
from sparkfleet.planner.capacity.start_time import predicted_start
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan
from sparkfleet.units import GIB, duration_words, gib, gib_of, plural, rough_duration, short_number

DAY_S = 86_400
HISTORY_S = 3600.0
"""Restarts are counted over the last hour."""
STARTS = frozenset({"deploy", "preparing", "starting"})
"""Kinds of events with which a start of a group begins. Ray Serve restarts a group that has served: no `deploy` then."""
ENDS = frozenset({"ready", "draining", "stopped", "failed"})
"""Kinds of events with which a start, or the life of a started group, ends."""
INDENT = "  "
TAKEN_DOWN = (
    "The fleet is being taken down, or a `sparkfleet down` did not end: nothing that was applied runs.\n"
    "`sparkfleet up` starts all of it again, `sparkfleet down` stops the rest."
)
NOTHING_DEPLOYED = "Nothing is deployed. `sparkfleet apply FILE` starts a deployment."
LastStart = Callable[[DeploymentPlan], float | None]


class _Past(NamedTuple):
    """Everything beside a deployment's status: events of the last hour, the present time, seconds of last starts."""

    recent: Sequence[Event]
    now: float
    last_start: LastStart
    fleet: FleetStatus
    drained: Collection[str] = ()
    """Names of groups that get no new requests."""


def fleet_lines(
    fleet: FleetStatus, recent: Sequence[Event], now: float, last_start: LastStart, only: str | None = None
) -> Iterator[str]:
    """The whole fleet: its endpoint, a paragraph per deployment, a line per node.

    Args:
        recent: events of at least the last hour, oldest first.
        now: Unix seconds.
        last_start: seconds of a plan's last start, None if there was none.
        only: name of the only deployment that is shown, without the nodes; None: all of them.
    """
    if only is None:
        yield from _endpoint_lines(fleet, now)
    for deployment in fleet.deployments:
        if only in (None, deployment.name):
            if only is None:
                yield ""
            drained_groups = {one.name for one in fleet.drained_groups}
            yield from _deployment_lines(deployment, _Past(recent, now, last_start, fleet, drained_groups))
    if only is None and len(fleet.nodes) > 1:
        yield from _node_lines(fleet)


def _endpoint_lines(fleet: FleetStatus, now: float) -> Iterator[str]:
    yield f"fleet {fleet.fleet} · sparkfleet {fleet.sparkfleet} · endpoint {fleet.endpoint}"
    yield from _entry_lines(fleet)
    yield from _certificate_lines(fleet, now)
    yield from fleet.gateway_troubles
    yield from (f"metrics {one.metrics_url} (on the head)" for one in fleet.gateways if one.metrics_url)
    if fleet.paused:
        yield ""
        yield from TAKEN_DOWN.splitlines()
    elif not fleet.deployments:
        yield ""
        yield NOTHING_DEPLOYED


def _node_lines(fleet: FleetStatus) -> Iterator[str]:
    yield ""
    yield "nodes"
    width = max(len(node.name) for node in fleet.nodes)
    drained = fleet.drained_nodes
    for node in fleet.nodes:
        yield f"{INDENT}{node.name:<{width}}  {_node(node)}{' · drained' * (node.name in drained)}"


def _entry_lines(fleet: FleetStatus) -> Iterator[str]:
    """The endpoint's further addresses, each with its state. `warnings` have the reasons."""
    for one in fleet.entries:
        yield f"endpoint on {one.node}: {one.url} · {entry_state(one)}"


def entry_state(one: EntryReport) -> str:
    """`3 connections`, or `not reached`."""
    return plural(one.connections, "connection") if one.reached else "not reached"


def _certificate_lines(fleet: FleetStatus, now: float) -> Iterator[str]:
    found = fleet.certificate
    if found is not None:
        days = (found.expires_at - now) / DAY_S
        date = datetime.fromtimestamp(found.expires_at, UTC).strftime("%Y-%m-%d")
        whose = "of the fleet's own authority" if found.authority else "given"
        yield f"certificate of the endpoint ({whose}): " + (
            f"valid until {date}, {days:.0f} days"
            if days > 0
            else f"expired on {date}: clients refuse it; renew its files, or set `gateway: {{tls: generated}}`"
        )


def state_words(deployment: DeploymentStatus) -> str:
    """`ready`, `degraded 1/2` (groups that serve, of those planned), `starting`, …"""
    wanted = len(deployment.plan.groups) if deployment.plan else 0
    ready = sum(
        group.phase is GroupPhase.READY and deployment.index_of(group.group) is not None
        for group in deployment.groups
    )
    if deployment.state in ("ready", "starting") and 0 < ready < wanted:
        return f"degraded {ready}/{wanted}"
    return deployment.state


def _deployment_lines(deployment: DeploymentStatus, past: _Past) -> Iterator[str]:
    queued = past.fleet.queued(deployment.name)
    waiting = f"{plural(queued, 'request')} waiting at the gateway" if queued else ""
    head = " · ".join(filter(None, (deployment.name, state_words(deployment), deployment.detail, waiting)))
    yield from indented(head, "", INDENT * 2)
    if words := use_words(deployment):
        yield f"{INDENT}on demand: {words}"
    for group in deployment.groups:
        label = short_name(group.group)
        rung = deployment.rung_of(group)
        candidate = rung.candidate if rung else None
        where = str(candidate.shape) if candidate else group.node
        yield f"{INDENT}{label}  {' · '.join([where, *_how(candidate, group)])}"
        below = INDENT + " " * len(label) + "  "
        for line in _group_lines(deployment, group, candidate, past):
            yield from indented(line, below)
    if deployment.state == "failed" and "`sparkfleet describe " not in deployment.detail:
        yield f"{INDENT}`sparkfleet describe {deployment.name}` has the reason of each attempt."


def indented(text: str, first: str, others: str | None = None) -> Iterator[str]:
    """The lines of a text, the first one after `first`, the others after `others`, which is `first` if it is left out."""
    for at, line in enumerate(text.splitlines()):
        yield (first if at == 0 or others is None else others) + line


def _how(candidate: Candidate | None, group: GroupReport) -> Iterator[str]:
    if candidate is None:
        yield group.engine
    else:
        yield candidate.how


def _group_lines(
    deployment: DeploymentStatus, group: GroupReport, candidate: Candidate | None, past: _Past
) -> Iterator[str]:
    if group.silent_s and group.phase is GroupPhase.FAILED:
        yield "failed, and ended; nothing has started since"
    elif group.silent_s:
        yield f"no report for {group.silent_s:.0f} s; it was {group.phase.value}"
    elif group.phase is GroupPhase.READY:
        yield from _serving_lines(deployment, group, candidate, past)
    elif group.phase in (*BEGINNING, GroupPhase.PROBING):
        yield _start(deployment, group, candidate, past)
    else:
        yield " · ".join(filter(None, (group.phase.value, group.detail)))
    yield from _restarts(group, past)


def _serving_lines(
    deployment: DeploymentStatus, group: GroupReport, candidate: Candidate | None, past: _Past
) -> Iterator[str]:
    yield load_words(group, candidate)
    if group.name in past.drained:
        yield f"drained: no new requests · `sparkfleet undrain {group.name}`"
    if group.chat_refusal:
        yield f"answers no chats: `sparkfleet describe {deployment.name}` has the reason"
    if words := _speed(deployment, group):
        yield words
    if _is_slow(deployment, group):
        yield "slower than predicted: `sparkfleet doctor` looks for the cause"
    if words := _memory(deployment, group, past.fleet):
        yield words
    if candidate is not None:
        yield from _draft_lines(deployment.model_copy(update={"groups": (group,)}))
    if group.rung:
        yield from _rung_lines(deployment, group, past.fleet)


def _rung_lines(deployment: DeploymentStatus, group: GroupReport, fleet: FleetStatus) -> Iterator[str]:
    """The reason for a rung below the first: what was planned first failed, or it does without a node; with the command if
    that has joined again, and is worth a start."""
    at, rung = deployment.index_of(group.group), deployment.rung_of(group)
    found = deployment.plan.groups[at] if deployment.plan is not None and at is not None else None
    number, details = f"rung {group.rung + 1} of its ladder", f"(`sparkfleet describe {deployment.name}`)"
    if found is None or rung is None or not found.is_elsewhere(rung):
        yield f"{number}: what was planned first failed {details}"
        return
    nodes = found.choice.candidate.shape.nodes
    lost = [node for node in nodes if node not in rung.candidate.shape.nodes]
    yield f"{number}: without {' and '.join(lost)} {details}"
    there = {node.name for node in fleet.nodes if node.joined and node.silent_s is None} - fleet.drained_nodes
    was, could = (one.prediction.decode_tps_per_request for one in (rung, found.choice))
    if there.issuperset(nodes) and was is not None and could is not None and could.mid > was.mid:
        yield f"`sparkfleet apply FILE`: {cost_words(rung, found.choice)}"


def _draft_lines(deployment: DeploymentStatus) -> Iterator[str]:
    """The tokens per step of its requests, if another depth of its draft, or none, is clearly faster for them."""
    for one in advice_for(deployment):
        if one.best is not None:
            published = f" (published {one.published:.2f})" if one.published else ""
            yield f"your traffic: {one.measured:.2f} tokens per step{published}"
            yield f"{one.best.speculation} is faster: `sparkfleet describe {deployment.name}`"


def load_words(group: GroupReport, candidate: Candidate | None) -> str:
    """`2 of 16 requests running, 1 waiting`, or `1 open connection; its requests are not counted`."""
    if group.counts_connections:
        return f"{plural(group.running, 'open connection')}; its requests are not counted"
    lanes = f" of {candidate.concurrency}" if candidate and candidate.concurrency else ""
    return f"{group.running}{lanes} requests running, {group.waiting} waiting"


def _speed(deployment: DeploymentStatus, group: GroupReport) -> str:
    """`380 ms to the first token, 24.7 tok/s for one user (predicted 21–28)`; "" before it is measured."""
    rung = deployment.rung_of(group)
    band = rung.prediction.check_decode_tps if rung else None
    words = []
    if "ttft_ms" in group.measured:
        words.append(f"{group.measured['ttft_ms']:.0f} ms to the first token")
    if "decode_tps" in group.measured:
        predicted = f" (predicted {band_ends(band)})" if band else ""
        words.append(f"{group.measured['decode_tps']:.1f} tok/s for one user{predicted}")
    elif unknown := unknown_rate_words(group.measured):
        words.append(unknown)
    return ", ".join(words)


def _is_slow(deployment: DeploymentStatus, group: GroupReport) -> bool:
    """True if the speed that was measured at its start is below the prediction's band."""
    rung = deployment.rung_of(group)
    band = rung.prediction.check_decode_tps if rung else None
    return band is not None and group.measured.get("decode_tps", band.low) < band.low


def _memory(deployment: DeploymentStatus, group: GroupReport, fleet: FleetStatus) -> str:
    """`memory: 47 GiB (predicted 45–56)`, with the nodes if there are several; "" before it is measured.

    For a custom workload `memory: 1.2 GiB (2 declared in the deployment)`.
    """
    measured = fleet.memory_of(group.group)
    if not measured:
        return ""
    rung = deployment.rung_of(group)
    need = rung.prediction.memory_bytes_per_rank if rung else None
    ends = f" ({_needed(need)})" if need else ""
    taken = ", ".join(f"{gib(held)} on {node}" for node, held in measured)
    return f"memory: {taken if len(measured) > 1 else gib(measured[0][1])}{ends}"


def _needed(memory: Band) -> str:
    if memory.basis == DECLARED:
        return f"{short_number(memory.mid / GIB)} {DECLARED}"
    return f"predicted {short_number(memory.low / GIB)}–{short_number(memory.high / GIB)}"


def _start(deployment: DeploymentStatus, group: GroupReport, candidate: Candidate | None, past: _Past) -> str:
    """`loading 40 % · 2 min 10 s of about 4 min (last start)`."""
    step = " ".join(filter(None, (step_of_group(group).value, step_detail(group))))
    expected = _expected(deployment, group, candidate, past)
    return f"{step} · {duration_words(past.now - _began(group, past.recent))}{expected}"


def _began(group: GroupReport, recent: Sequence[Event]) -> float:
    """Unix seconds of the first event of the start that goes on: a start before that one has ended."""
    began = None
    for event in recent:
        if event.subject == group.name and event.kind in ENDS:
            began = None
        elif event.subject == group.name and event.kind in STARTS and began is None:
            began = event.at
    return group.since if began is None else began


def _expected(
    deployment: DeploymentStatus, group: GroupReport, candidate: Candidate | None, past: _Past
) -> str:
    """` of about 4 min (last start)`, or `(predicted)` at the first one; "" if it is not what the plan starts: of another
    generation, or a lower rung."""
    at = deployment.index_of(group.group)
    if deployment.plan is None or at is None or candidate is None:
        return ""
    if candidate != deployment.plan.groups[at].choice.candidate:
        return ""
    last = past.last_start(deployment.plan)
    if last is None and deployment.demand is not None:
        last = deployment.demand.start_s  # a request started it: this machine has timed none
    if last:
        return f" of about {duration_words(last)} (last start)"
    found = predicted_start(candidate, deployment.plan.groups[at].choice.prediction.weights_bytes)
    return f" of about {rough_duration(found.first.mid)} (predicted)" if found else ""


def _restarts(group: GroupReport, past: _Past) -> Iterator[str]:
    failed = [
        event
        for event in past.recent
        if event.subject == group.name and event.kind == "failed" and past.now - event.at <= HISTORY_S
    ]
    if failed:
        count = 1 + sum(not _is_same_failure(*pair) for pair in pairwise(failed))
        times = "once" if count == 1 else f"{count} times"
        reason = failed[-1].message.partition("\n")[0]
        yield f"failed {times} in the last hour, last {duration_words(past.now - failed[-1].at)} ago: {reason}"


def _is_same_failure(event: Event, later: Event) -> bool:
    """True for the group's event of its last rung, and the controller's that no rung is left, which has the same reason."""
    return event.message != later.message and later.message.endswith(event.message)


def _node(node: NodeReport) -> str:
    if not node.joined:
        return f"gone: Ray on it does not answer · `sparkfleet doctor {node.name}`"
    if node.silent_s is not None:
        return f"no answer for {duration_words(node.silent_s)} · `sparkfleet doctor {node.name}`"
    if node.memory_total is None or node.memory_available is None:
        return "joined · memory not read"
    return f"joined · {gib_of(node.memory_available, node.memory_total)} available"
