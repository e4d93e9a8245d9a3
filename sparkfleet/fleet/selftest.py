"""Tries on real nodes each thing that the lab assumes of them: facts, links, engines alone and as one over their links."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.doctor.collect import netdevs_of, read_raw
from sparkfleet.doctor.findings import Severity
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.fabric.link_measurements import load_measurements, measured_links
from sparkfleet.fleet.clients.endpoint import ask
from sparkfleet.fleet.deployments.apply import carry_out, prepare_apply
from sparkfleet.fleet.deployments.status import FleetCondition, delete_deployment, fleet_state
from sparkfleet.fleet.doctor import examine_fleet
from sparkfleet.fleet.events import OnEvent, ignored
from sparkfleet.fleet.lifecycle.bring_up import page_cache_denied, take_down
from sparkfleet.fleet.lifecycle.reboot import served_by, survive_reboot
from sparkfleet.fleet.nodes.all_reduce import measure_all_reduce, rail_bytes
from sparkfleet.fleet.nodes.collect_facts import collect_facts
from sparkfleet.fleet.selftest_verdicts import (
    NAME,
    REPORT,
    StepVerdict,
    all_reduce_seen,
    engine_seen,
    engine_spec,
    facts_seen,
    link_seen,
    planned_link,
    rails_seen,
    sent_words,
    survival_seen,
)
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.planner.place.fleet_map import links_of
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.fields import quote
from sparkfleet.units import plural
from sparkfleet.values import Value

QUESTION = "What is a DGX Spark?"
TOKENS = 40


class SelftestStep(Value):
    """One assumption and its verdict."""

    name: str
    """`spark1: facts`."""
    verdict: Literal["ok", "fault", "skipped"]
    words: str
    do: str = ""
    seconds: float = 0.0


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
        nodes: only these, and the links between them; empty: all.
        engines: start a small model on each node, and over each link between two.
        model: this one; None: one that the engines of the nodes can serve.
        reboot: reboot this node at the end, and wait until all that it serves is back.

    Raises:
        SpecError: a node is not in the inventory.
        ControlError: the fleet's state is not known, or it has a deployment of the name `selftest` and engines are to start.
    """
    session.inventory.require_nodes([*nodes, *([reboot] if reboot else [])])
    names = [name for name in session.inventory.nodes if not nodes or name in nodes]
    before = await fleet_state(session)
    if before.trouble is not None:
        raise before.trouble
    if (engines or reboot) and any(one.name == NAME for one in before.status.deployments):
        raise ControlError(
            f"There is a deployment {quote(NAME)} already.",
            do=f"`sparkfleet delete {NAME}` ends one that was interrupted.",
        )
    for name in names:
        yield await _step(f"{name}: facts", partial(_facts, session, name))
    began = time.time()
    yield await _step("nodes and links: faults", lambda: _doctor(session, nodes))
    now, planned = _measured(session, began), _measured(session)
    for link, known in zip(now, planned, strict=True):
        if set(link.nodes) <= set(names):
            yield _link_step(link, known, session)
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
        yield await _step(f"{name}: an engine", partial(_check_engine, session, (name,), model, on_event))
    for pair in _pairs(session, names):
        title, within = "+".join(pair), _Within(session, pair)
        start = partial(_check_engine, session, pair, model, on_event, within)
        yield await _step(f"{title}: one engine of two ranks", start)
        for step in within.steps:
            yield step


async def _step(name: str, work: Callable[[], Awaitable[StepVerdict]]) -> SelftestStep:
    began = time.monotonic()
    try:
        seen = await work()
    except SparkfleetError as error:
        seen = StepVerdict(False, error.what, error.do)
    return SelftestStep(
        name=name, verdict=_verdict(seen), words=seen.words, do=seen.do, seconds=time.monotonic() - began
    )


def _verdict(seen: StepVerdict) -> Literal["ok", "fault"]:
    return "ok" if seen.fine else "fault"


async def _facts(session: Session, node: str) -> StepVerdict:
    inventory = session.inventory
    answers = await read_raw(
        session.channels[node], inventory.nodes[node], netdevs_of(inventory, node), inventory.environment
    )
    return facts_seen(answers)


async def _doctor(session: Session, nodes: Sequence[str]) -> StepVerdict:
    report = (await examine_fleet(session, nodes)).report
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    return StepVerdict(
        not errors,
        f"{plural(errors, 'error')}, {plural(warnings, 'warning')}",
        "`sparkfleet doctor` lists them." * bool(errors),
    )


def _measured(session: Session, since: float = 0.0) -> tuple[LinkFacts, ...]:
    """Links with the numbers that the planner uses: measured ones if there are any, of that moment or later."""
    file = FleetPaths.default(session.inventory.fleet).links
    return measured_links(session.inventory, [one for one in load_measurements(file) if one.when >= since])


def _link_step(link: LinkFacts, known: LinkFacts, session: Session) -> SelftestStep:
    """The figures of a link of this run. `known`: those of any run, which the planner uses."""
    assumed = next(
        one for one in links_of(session.inventory) if (one.nodes, one.switch) == (link.nodes, link.switch)
    )
    name = f"{'–'.join(link.nodes)}: speed"
    if link.provenance is not LinkProvenance.MEASURED:
        earlier = f"those of an earlier run: {known.gb_per_s:.1f} GB/s, {known.latency_us:.0f} µs"
        figures = earlier if known.provenance is LinkProvenance.MEASURED else "typical figures"
        return SelftestStep(
            name=name, verdict="skipped", words=f"not measured now; the planner uses {figures}"
        )
    seen = link_seen(link, assumed)
    return SelftestStep(name=name, verdict=_verdict(seen), words=seen.words, do=seen.do)


async def _page_cache(session: Session) -> StepVerdict:
    denied = await page_cache_denied(session)
    if not denied.nodes:
        return StepVerdict(True, "may be dropped before an engine starts, or no node has a GPU")
    return StepVerdict(
        False,
        f"may not be dropped on {', '.join(denied.nodes)}: only the cached files of models are given back, others take"
        " memory from engines",
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
            return await _ask(self._session)
        counters = rail_bytes(candidate, self._session.inventory.links, self._session.channels)
        await counters.begin()
        tokens = await _ask(self._session)
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

    async def _all_reduce(self, candidate: Candidate) -> StepVerdict:
        inventory = self._session.inventory
        found = await measure_all_reduce(candidate, NAME, inventory.links, self._session.channels)
        return all_reduce_seen(found, planned_link(_measured(self._session), self._nodes))


def _candidate(state: DeploymentStatus) -> Candidate | None:
    rung = state.rung_of(state.groups[0])
    return rung.candidate if rung else None


async def _check_engine(
    session: Session,
    nodes: tuple[str, ...],
    model: str | None,
    on_event: OnEvent,
    within: _Within | None = None,
) -> StepVerdict:
    """Starts the small model, asks it, and ends it; with its memory before and after."""
    async with _serve(session, nodes, model, on_event) as state:
        if state.state != "ready":
            return StepVerdict(False, f"did not start: {state.detail}", REPORT)
        tokens = await (within.answered(state) if within else _ask(session))
        free = await _free(session, nodes)
    returned = await _free(session, nodes) - free
    return engine_seen(state, tokens, returned)


@asynccontextmanager
async def _serve(
    session: Session, nodes: Sequence[str], model: str | None, on_event: OnEvent
) -> AsyncIterator[DeploymentStatus]:
    """The small model on these nodes, with its state after its start; it is deleted at the end."""
    others = session.inventory.nodes.keys() - set(nodes)
    spec = engine_spec(await collect_facts(session.inventory, session.channels, others), model)
    prepared = await prepare_apply(session, [spec])
    applied = await carry_out(session, prepared, on_event)
    try:
        yield applied.settled[NAME]
    finally:
        await delete_deployment(session, NAME, lambda: None)


async def _reboot(session: Session, node: str, model: str | None, on_event: OnEvent) -> StepVerdict:
    """Reboots a node. If it serves nothing, the small model has to come back."""
    state = await fleet_state(session)
    if state.condition is FleetCondition.UP and served_by(state.status, node):
        return survival_seen(await survive_reboot(session, node, on_event))
    async with _serve(session, (node,), model, on_event) as served:
        if served.state != "ready":
            return StepVerdict(False, f"not rebooted: an engine on it did not start: {served.detail}", REPORT)
        return survival_seen(await survive_reboot(session, node, on_event))


async def _ask(session: Session) -> int:
    """Tokens of an answer over the endpoint, with a key of its own."""
    return (await ask(session, NAME, QUESTION, "", max_tokens=TOKENS, on_text=lambda _: None)).tokens


async def _free(session: Session, nodes: Sequence[str]) -> int:
    """Available memory of these nodes, bytes."""
    async with await session.controller() as client:
        status: FleetStatus = await client.fleet()
    return sum(node.memory_available or 0 for node in status.nodes if node.name in nodes)
