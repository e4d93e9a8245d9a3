"""Tries on real nodes each thing that the lab assumes of them: facts, links, engines alone and as one over their links."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.doctor.collect import RawAnswer, netdevs_of, read_raw
from sparkfleet.doctor.findings import Severity
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.fabric.link_measurements import load_measurements, measured_links
from sparkfleet.fleet.clients.endpoint import ask_at
from sparkfleet.fleet.deployments.apply import carry_out, prepare_apply
from sparkfleet.fleet.deployments.status import FleetCondition, delete_deployment, fleet_state
from sparkfleet.fleet.doctor import examine_fleet
from sparkfleet.fleet.events import OnEvent, ignored
from sparkfleet.fleet.lifecycle.bring_up import page_cache_denied, take_down
from sparkfleet.fleet.lifecycle.reboot import BACK_S, Survival, served_by, survive_reboot
from sparkfleet.fleet.nodes.all_reduce import AllReduceMeasurement, Sent, measure_all_reduce, rail_bytes
from sparkfleet.fleet.nodes.collect_facts import survey
from sparkfleet.fleet.planning.group_measurements import canary_words, measured_words
from sparkfleet.fleet.report.outcome import rung_lines
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.planner.place.fleet_map import links_of
from sparkfleet.planner.search.cpu_models import uses_gpu
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote
from sparkfleet.units import GIB, gib
from sparkfleet.values import Value

NAME = "selftest"
"""Of its deployment and of its key."""
ON_GPUS, ON_CPUS = "Qwen/Qwen3-0.6B", "builtin:tiny"
"""Models of the test: the built-in ones run on CPUs only, and a GPU has to prove the image that is planned for it. That
one has 1.5 GB, and published figures of a Spark against which the prediction can be held."""
QUESTION = "What is a DGX Spark?"
TOKENS = 40
REPORT = "`sparkfleet bundle` has its events and the end of its log: please attach it to a report."
LEFT_BYTES = GIB
"""Memory that an ended engine may leave unreturned: files that others read meanwhile are in the page cache."""
INSTEAD = {"pci_links": "pci_by_address"}
"""Facts that another one replaces: a netdev's PCIe link is found by its name or by its address."""
SLOW = 0.7
"""A link that reaches less than this share of the planner's figure is a fault; rails differ by less among published ones."""
EVEN = 0.5
"""A rail that carries less than this share of the busiest of its node is a fault: NCCL splits each message over all."""
LATE = 2.0
"""The same for a latency above this multiple: each token of a split model waits for it twice a layer."""


class SelftestStep(Value):
    """One assumption and its verdict."""

    name: str
    """`spark1: facts`."""
    verdict: Literal["ok", "fault", "skipped"]
    words: str
    do: str = ""
    seconds: float = 0.0


class _Seen(NamedTuple):
    """Result of one step: if it is as assumed, and the figures."""

    fine: bool
    words: str
    do: str = ""


async def selftest(
    session: Session,
    nodes: Sequence[str],
    *,
    engines: bool = True,
    model: str | None = None,
    reboot: str | None = None,
    on_event: OnEvent = ignored,
) -> AsyncIterator[SelftestStep]:
    """Tries one assumption after the other. Deployments that serve go on; the fleet is left up or down as it was.

    Args:
        session: the fleet.
        nodes: only these, and the links between them; empty: all.
        engines: start a small model on each node, and over each link between two.
        model: this one; None: one that the engines of the nodes can serve.
        reboot: reboot this node at the end, and wait until all that it serves is back.
        on_event: receives the steps of each start.

    Raises:
        SpecError: a node is not in the inventory.
        ControlError: the fleet's state is not known, or it has a deployment of the name `selftest`.
    """
    session.inventory.require_nodes([*nodes, *([reboot] if reboot else [])])
    names = [name for name in session.inventory.nodes if not nodes or name in nodes]
    before = await fleet_state(session)
    if before.trouble is not None:
        raise before.trouble
    if any(one.name == NAME for one in before.status.deployments):
        raise ControlError(
            f"There is a deployment {quote(NAME)} already.",
            do=f"`sparkfleet delete {NAME}` ends one that was interrupted.",
        )
    for name in names:
        yield await _step(f"{name}: facts", lambda name=name: _facts(session, name))  # type: ignore[misc]
    yield await _step("nodes and links: faults", lambda: _doctor(session, nodes))
    for link in _measured(session):
        if set(link.nodes) <= set(names):
            yield _link_step(link, session)
    yield await _step("page cache", lambda: _page_cache(session))
    try:
        async for step in _engines(session, names, model, on_event) if engines else _no_engines():
            yield step
        if reboot is not None:
            yield await _step(f"{reboot}: reboot", lambda: _reboot(session, reboot, model, on_event))
    finally:
        if before.condition is FleetCondition.DOWN:
            await take_down(session)


async def _no_engines() -> AsyncIterator[SelftestStep]:
    yield SelftestStep(name="engines", verdict="skipped", words="not asked for")


async def _engines(
    session: Session, names: Sequence[str], model: str | None, on_event: OnEvent
) -> AsyncIterator[SelftestStep]:
    """An engine on each node, then one over each link, with the all-reduces and the rails of its ranks."""
    for name in names:
        yield await _step(f"{name}: an engine", lambda name=name: _engine(session, (name,), model, on_event))  # type: ignore[misc]
    for pair in _pairs(session, names):
        title, within = "+".join(pair), _Within(session, pair)
        yield await _step(
            f"{title}: one engine of two ranks",
            lambda pair=pair, within=within: _engine(session, pair, model, on_event, within),  # type: ignore[misc]
        )
        for step in within.steps:
            yield step


async def _step(name: str, work: Callable[[], object]) -> SelftestStep:
    began = time.monotonic()
    try:
        seen = await work()  # type: ignore[misc]
    except SparkfleetError as error:
        seen = _Seen(False, error.what, error.do)
    assert isinstance(seen, _Seen)
    return SelftestStep(
        name=name, verdict=_verdict(seen), words=seen.words, do=seen.do, seconds=time.monotonic() - began
    )


def _verdict(seen: _Seen) -> Literal["ok", "fault"]:
    return "ok" if seen.fine else "fault"


async def _facts(session: Session, node: str) -> _Seen:
    inventory = session.inventory
    answers = await read_raw(session.channels[node], inventory.nodes[node], netdevs_of(inventory, node))
    return facts_seen(answers)


def facts_seen(answers: Sequence[RawAnswer]) -> _Seen:
    """Facts that no command of a node has given. Several commands may give the same one. Pure."""
    known = {one.field for one in answers if not one.not_understood}
    lost = {one.field: one for one in answers if not {one.field, INSTEAD.get(one.field)} & known}
    if not lost:
        return _Seen(True, f"{len(known)} facts by {len(answers)} commands, each output understood")
    first = next(iter(lost.values()))
    return _Seen(
        False,
        f"{len(lost)} of {len(known) + len(lost)} facts could not be read: {', '.join(lost)}; first: {first.not_understood}",
        "`sparkfleet bundle` has the raw outputs: please attach it to a report.",
    )


async def _doctor(session: Session, nodes: Sequence[str]) -> _Seen:
    report = (await examine_fleet(session, nodes)).report
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    return _Seen(
        not errors, f"{errors} errors, {warnings} warnings", "`sparkfleet doctor` lists them." * bool(errors)
    )


def _measured(session: Session) -> tuple[LinkFacts, ...]:
    """Links with the numbers that the planner uses: measured ones if there are any."""
    file = FleetPaths.default(session.inventory.fleet).links
    return measured_links(session.inventory, load_measurements(file))


def _link_step(link: LinkFacts, session: Session) -> SelftestStep:
    assumed = next(
        one for one in links_of(session.inventory) if (one.nodes, one.switch) == (link.nodes, link.switch)
    )
    name = f"{'–'.join(link.nodes)}: speed"
    if link.provenance is not LinkProvenance.MEASURED:
        return SelftestStep(
            name=name, verdict="skipped", words="not measured; the planner uses typical figures"
        )
    seen = link_seen(link, assumed)
    return SelftestStep(name=name, verdict="ok" if seen.fine else "fault", words=seen.words, do=seen.do)


def link_seen(measured: LinkFacts, assumed: LinkFacts) -> _Seen:
    """A link's measured numbers against those that the planner assumes of such links. Pure."""
    words = (
        f"{measured.gb_per_s:.1f} GB/s and {measured.latency_us:.0f} µs measured;"
        f" assumed of such links: {assumed.gb_per_s:.1f} GB/s, {assumed.latency_us:.0f} µs"
    )
    fine = measured.gb_per_s >= SLOW * assumed.gb_per_s and measured.latency_us <= LATE * assumed.latency_us
    return _Seen(
        fine, words, "" if fine else "`sparkfleet doctor` looks for the cause; plans use the measured figure."
    )


async def _page_cache(session: Session) -> _Seen:
    denied = await page_cache_denied(session)
    if not denied.nodes:
        return _Seen(True, "may be dropped before an engine starts, or no node has a GPU")
    return _Seen(
        False,
        f"may not be dropped on {', '.join(denied.nodes)}: files that were read take memory from engines",
        f"Once on each of them: {denied.commands[0]}",
    )


def _pairs(session: Session, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Nodes joined by a cable, and neighbours on a switch."""
    links = session.inventory.links
    found = [tuple(link.nodes) for link in links if len(link.nodes) == 2 and set(link.nodes) <= set(names)]
    switched = [link.nodes[0] for link in links if link.switch is not None and link.nodes[0] in names]
    return [*found, *zip(switched[::2], switched[1::2], strict=False)]


class _Within:
    """Steps on an engine of several ranks while it serves: their rails, and all-reduces between them."""

    def __init__(self, session: Session, nodes: tuple[str, ...]) -> None:
        self.steps: list[SelftestStep] = []
        self._session = session
        self._nodes = nodes

    async def answered(self, state: DeploymentStatus) -> int:
        """Tokens of an answer, while the bytes on the rails are counted."""
        candidate = _candidate(state)
        if candidate is None or candidate.shape.ranks < 2:
            return await _asked(self._session)
        counters = rail_bytes(candidate, self._session.inventory.links, self._session.channels)
        await counters.begin()
        tokens = await _asked(self._session)
        sent = await counters.sent()
        name = f"{'+'.join(self._nodes)}: rails of an answer"
        if counters.by_rdma:
            seen = rails_seen(sent)
            self.steps.append(SelftestStep(name=name, verdict=_verdict(seen), words=seen.words, do=seen.do))
        else:
            words = f"{sent_words(sent)}; by TCP, counted with all that the first rail carries"
            self.steps.append(SelftestStep(name=name, verdict="skipped", words=words))
        self.steps.append(
            await _step(f"{'+'.join(self._nodes)}: all-reduce", lambda: self._all_reduce(candidate))
        )
        return tokens

    async def _all_reduce(self, candidate: Candidate) -> _Seen:
        inventory = self._session.inventory
        found = await measure_all_reduce(candidate, NAME, inventory.links, self._session.channels)
        return all_reduce_seen(found, planned_link(_measured(self._session), self._nodes))


def _candidate(state: DeploymentStatus) -> Candidate | None:
    rung = state.rung_of(state.groups[0])
    return rung.candidate if rung else None


def planned_link(links: Sequence[LinkFacts], nodes: Sequence[str]) -> LinkFacts:
    """The figures with which these nodes are planned as one: those of the slowest link that joins them. Pure."""
    among = [link for link in links if set(link.nodes) <= set(nodes)]
    return max(among, key=lambda link: (link.latency_us, -link.gb_per_s))


def all_reduce_seen(measured: AllReduceMeasurement, assumed: LinkFacts) -> _Seen:
    """All-reduces against the figures of the plan, and the bytes of each rail. Pure."""
    rails = rails_seen(
        measured.sent, split=measured.by_rdma, at_least=measured.moved if measured.backend == "gloo" else 1
    )
    if measured.backend == "gloo":
        words = (
            f"gloo on CPUs: {measured.gb_per_s:.2f} GB/s, {measured.latency_us:.0f} µs"
            " (the planner's figures are of NCCL)"
        )
        return _Seen(rails.fine, f"{words}; {rails.words}", rails.do)
    found = assumed.model_copy(update={"gb_per_s": measured.gb_per_s, "latency_us": measured.latency_us})
    speed = link_seen(found, assumed)
    words = f"NCCL {measured.library}: {speed.words}; {rails.words}"
    return _Seen(speed.fine and rails.fine, words, rails.do or speed.do)


def rails_seen(sent: Sent, *, split: bool = True, at_least: int = 1) -> _Seen:
    """The bytes that each rail of each node has sent. Pure.

    Args:
        sent: by node and rail.
        split: the bytes are split over all rails; False: the first one carries them.
        at_least: bytes that each node has to send over its rails.
    """
    words = sent_words(sent)
    do = "`sparkfleet doctor` looks for the cause; `sparkfleet fabric measure` loads each rail."
    for node, rails in sent.items():
        busiest = max(rails, key=rails.__getitem__)
        if sum(rails.values()) < at_least:
            return _Seen(False, f"{node} sent its messages over another network than the rails ({words})", do)
        for rail, count in rails.items() if split else ():
            if count < EVEN * rails[busiest]:
                fault = (
                    "carried nothing"
                    if count == 0
                    else f"carries less than {EVEN:.0%} of what {busiest} carries"
                )
                return _Seen(False, f"{node}: {rail} {fault} ({words})", do)
    return _Seen(True, words)


def sent_words(sent: Sent) -> str:
    """`sent: spark1 rocep1s0f0 512.0 MB, roceP2p1s0f0 511.8 MB; spark2 …`. Pure."""
    nodes = (
        f"{node} {', '.join(f'{rail} {count / 1e6:.1f} MB' for rail, count in rails.items())}"
        for node, rails in sent.items()
    )
    return f"sent: {'; '.join(nodes)}"


async def _engine(
    session: Session,
    nodes: tuple[str, ...],
    model: str | None,
    on_event: OnEvent,
    within: _Within | None = None,
) -> _Seen:
    """Starts the small model, asks it, and ends it; with its memory before and after."""
    async with _served(session, nodes, model, on_event) as state:
        if state.state != "ready":
            return _Seen(False, f"did not start: {state.detail}", REPORT)
        tokens = await (within.answered(state) if within else _asked(session))
        free = await _free(session, nodes)
    returned = await _free(session, nodes) - free
    return engine_seen(state, tokens, returned)


@asynccontextmanager
async def _served(
    session: Session, nodes: Sequence[str], model: str | None, on_event: OnEvent
) -> AsyncIterator[DeploymentStatus]:
    """The small model on these nodes, with its state after its start; it is deleted at the end."""
    others = session.inventory.nodes.keys() - set(nodes)
    spec = engine_spec(await survey(session.inventory, session.channels, others), model)
    prepared = await prepare_apply(session, [spec])
    applied = await carry_out(session, prepared, on_event)
    try:
        yield applied.settled[NAME]
    finally:
        await delete_deployment(session, NAME, lambda: None)


async def _reboot(session: Session, node: str, model: str | None, on_event: OnEvent) -> _Seen:
    """Reboots a node. If it serves nothing, the small model has to come back."""
    state = await fleet_state(session)
    if state.condition is FleetCondition.UP and served_by(state.status, node):
        return survival_seen(await survive_reboot(session, node, on_event))
    async with _served(session, (node,), model, on_event) as served:
        if served.state != "ready":
            return _Seen(False, f"not rebooted: an engine on it did not start: {served.detail}", REPORT)
        return survival_seen(await survive_reboot(session, node, on_event))


def survival_seen(survival: Survival) -> _Seen:
    """A node that was rebooted: the seconds until it and all that it served were back. Pure."""
    if survival.node_s is None:
        return _Seen(
            False,
            f"not part of the fleet again within {BACK_S / 60:.0f} min",
            "sparkfleet status; sparkfleet up",
        )
    node = f"part of the fleet again after {survival.node_s:.0f} s"
    if survival.served_s is None:
        missing = ", ".join(survival.missing)
        return _Seen(False, f"{node}; not ready again within {BACK_S / 60:.0f} min: {missing}", REPORT)
    return _Seen(True, f"{node}, all that it served was ready after {survival.served_s:.0f} s")


def engine_spec(nodes: Sequence[NodeFacts], model: str | None = None) -> Deployment:
    """The deployment of a test on these nodes, on all of them as one if there are several. Pure."""
    usual = ON_GPUS if all(map(uses_gpu, nodes)) else ON_CPUS
    fields = {
        "name": NAME,
        "model": model or usual,
        "context": 512,
        "concurrency": 4,
        "nodes": tuple(node.name for node in nodes),
    }
    return Deployment.model_validate(fields | ({"parallel": {"tp": len(nodes)}} if len(nodes) > 1 else {}))


def engine_seen(state: DeploymentStatus, tokens: int, returned: int) -> _Seen:
    """An engine that has answered and ended; on a lower rung than the planned one it is a fault.

    `returned`: bytes that its nodes have more of since. Pure.
    """
    group = state.groups[0]
    rungs = tuple(rung_lines(state, group))
    if group.rung:
        return _Seen(False, "; ".join(rungs), REPORT)
    words = [
        *rungs,
        f"answered {tokens} tokens",
        measured_words(state, group),
        canary_words(group) or "not checked by the canary",
    ]
    if returned < -LEFT_BYTES:
        return _Seen(
            False,
            f"its end left {gib(-returned, exact=True)} less memory than while it ran",
            "`sparkfleet doctor`",
        )
    return _Seen(tokens > 1, "; ".join(words))


async def _asked(session: Session) -> int:
    """Tokens of an answer over the endpoint, with a key of its own."""
    client = await session.controller()
    trust = await session.endpoint.trust(client)
    async with client, session.endpoint.url(client) as url:
        key = (await client.create_key(NAME))["key"]
        try:
            speed = await ask_at(
                url, NAME, QUESTION, key, max_tokens=TOKENS, on_text=lambda _: None, trust=trust
            )
        finally:
            await client.revoke_key(NAME)
    return speed.tokens


async def _free(session: Session, nodes: Sequence[str]) -> int:
    """Available memory of these nodes, bytes."""
    async with await session.controller() as client:
        status: FleetStatus = await client.fleet()
    return sum(node.memory_available or 0 for node in status.nodes if node.name in nodes)
