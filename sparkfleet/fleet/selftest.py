"""Tries on real nodes each thing that the lab assumes of them: facts, links, engines alone and as one over their links."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
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
from sparkfleet.fleet.nodes.collect_facts import survey
from sparkfleet.fleet.planning.group_measurements import canary_words, measured_words
from sparkfleet.fleet.report.outcome import rung_lines
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.planner.place.fleet_map import links_of
from sparkfleet.planner.search.cpu_models import uses_gpu
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote
from sparkfleet.units import GIB
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
    on_event: OnEvent = ignored,
) -> AsyncIterator[SelftestStep]:
    """Tries one assumption after the other. Deployments that serve go on; the fleet is left up or down as it was.

    Args:
        session: the fleet.
        nodes: only these, and the links between them; empty: all.
        engines: start a small model on each node, and over each link between two.
        model: this one; None: one that the engines of the nodes can serve.
        on_event: receives the steps of each start.

    Raises:
        SpecError: a node is not in the inventory.
        ControlError: the fleet's state is not known, or it has a deployment of the name `selftest`.
    """
    session.inventory.require_nodes(nodes)
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
    if not engines:
        yield SelftestStep(name="engines", verdict="skipped", words="not asked for")
        return
    try:
        for group in (*((name,) for name in names), *_pairs(session, names)):
            title = (
                f"{'+'.join(group)}: an engine"
                if len(group) == 1
                else f"{'+'.join(group)}: one engine of two ranks"
            )
            yield await _step(title, lambda group=group: _engine(session, group, model, on_event))  # type: ignore[misc]
    finally:
        if before.condition is FleetCondition.DOWN:
            await take_down(session)


async def _step(name: str, work: Callable[[], object]) -> SelftestStep:
    began = time.monotonic()
    try:
        seen = await work()  # type: ignore[misc]
    except SparkfleetError as error:
        seen = _Seen(False, error.what, error.do)
    assert isinstance(seen, _Seen)
    verdict: Literal["ok", "fault"] = "ok" if seen.fine else "fault"
    return SelftestStep(
        name=name, verdict=verdict, words=seen.words, do=seen.do, seconds=time.monotonic() - began
    )


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


async def _engine(session: Session, nodes: tuple[str, ...], model: str | None, on_event: OnEvent) -> _Seen:
    """Starts the small model, asks it, and ends it; with its memory before and after."""
    others = session.inventory.nodes.keys() - set(nodes)
    spec = engine_spec(await survey(session.inventory, session.channels, others), model)
    prepared = await prepare_apply(session, [spec])
    applied = await carry_out(session, prepared, on_event)
    try:
        state = applied.settled[NAME]
        if state.state != "ready":
            return _Seen(False, f"did not start: {state.detail}", REPORT)
        tokens = await _asked(session)
        free = await _free(session, nodes)
    finally:
        await delete_deployment(session, NAME, lambda: None)
    returned = await _free(session, nodes) - free
    return engine_seen(state, tokens, returned)


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
            f"its end left {-returned / GIB:.1f} GiB less memory than while it ran",
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
