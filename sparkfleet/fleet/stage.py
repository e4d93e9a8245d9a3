"""Brings what a plan needs to the nodes that need it, before anything is started there."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from sparkfleet.errors import NodeError
from sparkfleet.fleet.events import BytesMoving, FactFound, OnEvent, ignored
from sparkfleet.fleet.session import Session
from sparkfleet.planner.rules.failure_memory import Remembered, without_failed
from sparkfleet.planner.types.image_refs import tags_of, with_digests
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan
from sparkfleet.staging.agent.transfer import RESERVE_BYTES
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.pin_images import Pinned, pin
from sparkfleet.staging.progress import OnProgress, TransferProgress
from sparkfleet.staging.settings import Need, Staged, StagingSettings

_Where = dict[tuple[str, str], dict[str, None]]
"""Nodes by thing, a kind and a name; both in the order in which they were named."""


def needs_of(plans: Iterable[DeploymentPlan]) -> tuple[Need, ...]:
    """Needs of the first rungs of these plans by node: checkpoints, drafts, images."""
    where: _Where = {}
    for candidate in (group.choice.candidate for plan in plans for group in plan.groups):
        for thing in _things(candidate):
            where.setdefault(thing, {}).update(dict.fromkeys(candidate.shape.nodes))
    return _needs(where)


def fallbacks_of(plans: Iterable[DeploymentPlan]) -> tuple[Need, ...]:
    """Nodes that need the same things, so that a group can fall back or leave a node that is gone.

    What only a lower rung needs, such as another engine's image, is not fetched before it is known to be needed: the next
    `apply` remembers what did not start, and brings it.
    """
    plans = tuple(plans)
    first = {(thing, node) for need in needs_of(plans) for thing in [need.wanted] for node in need.nodes}
    known = {thing for thing, _ in first}
    where: _Where = {}
    rungs = (rung.candidate for plan in plans for group in plan.groups for rung in group.ladder[1:])
    for candidate in rungs:
        for thing in _things(candidate):
            where.setdefault(thing, {}).update(dict.fromkeys(candidate.shape.nodes))
    return tuple(
        need.model_copy(update={"nodes": nodes})
        for need in _needs(where)
        if need.wanted in known
        if (nodes := tuple(node for node in need.nodes if (need.wanted, node) not in first))
    )


def _needs(where: _Where) -> tuple[Need, ...]:
    return tuple(
        Need.image(name, tuple(nodes)) if kind == "image" else Need.model(name, tuple(nodes))
        for (kind, name), nodes in where.items()
    )


async def pinned(
    session: Session,
    plans: Sequence[DeploymentPlan],
    failed: Collection[Remembered],
    on_event: OnEvent = ignored,
    *,
    renew: bool = False,
) -> tuple[DeploymentPlan, ...]:
    """The plans with a digest for every image that is named by a tag, found once for all of them.

    A lower rung's image that no node has keeps its tag, as it is not fetched either. What is remembered not to have started
    is so by its digest: it is taken out of the plans here, and what comes first then is looked up in its turn.

    Args:
        session: the fleet.
        plans: as they were made.
        failed: what did not start on this fleet.
        on_event: takes bytes that move, and which image each tag is.
        renew: ask registries what tags stand for now, also where nodes have an image.

    Raises:
        StagingError: no node has a first rung's image, or can get it.
        NodeError: a node that is to run one does not answer.
    """
    first, lower = tags_of(plans)
    needs = [Need.image(tag, nodes, "always" if renew else "if-missing") for tag, nodes in first.items()]
    needs += [Need.image(tag, nodes, "never") for tag, nodes in lower.items()]
    found: dict[str, str] = {}
    for need in needs:
        one = await _pinned(session, need, on_event)
        found |= {need.wanted.name: one.image} if one is not None else {}
    named = tuple(with_digests(plan, found) for plan in plans)
    left = tuple(without_failed(plan, failed) for plan in named)
    return left if left == named else await pinned(session, left, failed, on_event, renew=renew)


async def _pinned(session: Session, need: Need, on_event: OnEvent) -> Pinned | None:
    """Find one tag's image, and send which it is."""
    settings = await staging_settings(session, on_event)
    found = await pin(session.channels, need, moving(on_event), settings=settings)
    if found is not None and need.hub != "never":
        digest = found.image.partition("@")[2]
        others = f"; {', '.join(found.others)}: another, which is not used" if found.others else ""
        on_event(FactFound(line=f"{need.wanted.name} is {digest[:19]}… as on {found.node}{others}"))
    return found


async def bring(
    session: Session, plans: Sequence[DeploymentPlan], on_event: OnEvent = ignored
) -> tuple[Staged, ...]:
    """Bring what first rungs need, then the same things to the nodes of lower ones.

    On this machine alone, embedded models are made when they start, and directories are there. Images have digests, or it is
    a lower rung's.

    Raises:
        StagingError: what a first rung needs cannot be had, or there is no room for it.
        NodeError: a node of a first rung does not answer.
    """
    alone = len(session.inventory.nodes) == 1 and session.inventory.nodes[session.inventory.head].is_local
    needs = tuple(
        need for need in needs_of(plans) if not (alone and need.wanted.kind in ("builtin", "directory"))
    )
    if not needs:
        return ()
    settings = await staging_settings(session, on_event)
    found = await _staged(session, needs, settings, on_event)
    for need in fallbacks_of(plans):
        await _try(session, need, settings, on_event)
    return found


async def staging_settings(session: Session, on_event: OnEvent = ignored) -> StagingSettings:
    """The Python of sparkfleet on every node, and the Hub's endpoint and token of this process's environment."""
    return StagingSettings(
        python=await session.pythons(on_event),
        endpoint=os.environ.get("HF_ENDPOINT", ""),
        token=os.environ.get("HF_TOKEN", "").strip(),
        reserve_bytes=RESERVE_BYTES,
    )


def moving(on_event: OnEvent) -> OnProgress:
    """Staging's progress as events."""

    def send(progress: TransferProgress) -> None:
        on_event(BytesMoving(progress=progress))

    return send


async def _staged(
    session: Session, needs: Sequence[Need], settings: StagingSettings, on_event: OnEvent
) -> tuple[Staged, ...]:
    return await stage(session.inventory, session.channels, needs, moving(on_event), settings=settings)


async def _try(session: Session, need: Need, settings: StagingSettings, on_event: OnEvent) -> None:
    """Bring what only lower rungs need. It is not needed now: that it cannot be had is an event, and stops nothing."""
    try:
        await _staged(session, (need,), settings, on_event)
    except NodeError as error:
        nodes = ", ".join(need.nodes)
        on_event(FactFound(line=f"Lower rungs on {nodes} cannot be used: {error.what}"))


def _things(candidate: Candidate) -> Iterable[tuple[str, str]]:
    if candidate.engine != "custom":
        yield "model", candidate.model
        if candidate.speculation.draft is not None:
            yield "model", candidate.speculation.draft
    if candidate.runtime == "container" and candidate.image:
        yield "image", candidate.image
