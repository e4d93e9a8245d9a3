"""Stages the weights and images of plans on their nodes before anything is started there."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from sparkfleet.errors import NodeError
from sparkfleet.fleet.events import BytesMoving, FactFound, OnEvent, ignored
from sparkfleet.fleet.session import Session
from sparkfleet.planner.rules.failure_memory import RememberedFailure, without_failed
from sparkfleet.planner.types.image_refs import tags_of, with_digests
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan
from sparkfleet.staging.agent.transfer import RESERVE_BYTES
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.pin_images import Pinned, pin
from sparkfleet.staging.progress import OnProgress, TransferProgress
from sparkfleet.staging.settings import Need, Staged, StagingSettings

_Where = dict[tuple[str, str], dict[str, None]]
"""Nodes by kind and name of what they need; both in the order of the plans."""


def needs_of(plans: Iterable[DeploymentPlan]) -> tuple[Need, ...]:
    """Needs of the first rungs of these plans, with their nodes: checkpoints, draft models, images."""
    where: _Where = {}
    for candidate in (group.choice.candidate for plan in plans for group in plan.groups):
        for thing in _things(candidate):
            where.setdefault(thing, {}).update(dict.fromkeys(candidate.shape.nodes))
    return _needs(where)


def fallbacks_of(plans: Iterable[DeploymentPlan]) -> tuple[Need, ...]:
    """Further nodes for the same weights and images, so that a group can fall back, and everything that it needs to leave a
    lost node.

    Weights and images of lower rungs on its own nodes alone, such as another engine's image, are not fetched yet: the next
    `apply` does so if the rungs above are remembered as failed.
    """
    plans = tuple(plans)
    first = {(thing, node) for need in needs_of(plans) for thing in [need.wanted] for node in need.nodes}
    where: _Where = {}
    elsewhere: _Where = {}
    for group in (group for plan in plans for group in plan.groups):
        for rung in group.ladder[1:]:
            nodes = dict.fromkeys(rung.candidate.shape.nodes)
            for thing in _things(rung.candidate):
                where.setdefault(thing, {}).update(nodes)
                if group.is_elsewhere(rung):
                    elsewhere.setdefault(thing, {}).update(nodes)
    known = {thing for thing, _ in first} | {need.wanted for need in _needs(elsewhere)}
    return tuple(
        need.model_copy(update={"nodes": further})
        for need in _needs(where)
        if need.wanted in known
        if (further := tuple(node for node in need.nodes if (need.wanted, node) not in first))
    )


def _needs(where: _Where) -> tuple[Need, ...]:
    return tuple(
        Need.image(name, tuple(nodes)) if kind == "image" else Need.model(name, tuple(nodes))
        for (kind, name), nodes in where.items()
    )


async def pin_images(
    session: Session,
    plans: Sequence[DeploymentPlan],
    failed: Collection[RememberedFailure],
    on_event: OnEvent = ignored,
    *,
    renew: bool = False,
) -> tuple[DeploymentPlan, ...]:
    """The plans with every image tag resolved to a digest, once for all plans.

    A lower rung's image that no node has keeps its tag, because it is not fetched either. Failed rungs are remembered by
    digest: they are removed from the plans here, and the tags of the rungs that become first are resolved in turn.

    Args:
        plans: with tags.
        failed: rungs that are remembered as failed on this fleet.
        renew: resolve tags at their registries, even if nodes have an image of that name.

    Raises:
        StagingError: no node has a first rung's image or can fetch it.
        NodeError: a node of a first rung does not answer.
    """
    first, lower = tags_of(plans)
    needs = [Need.image(tag, nodes, "always" if renew else "if-missing") for tag, nodes in first.items()]
    needs += [Need.image(tag, nodes, "never") for tag, nodes in lower.items()]
    found: dict[str, str] = {}
    for need in needs:
        one = await _pin(session, need, on_event)
        found |= {need.wanted.name: one.image} if one is not None else {}
    named = tuple(with_digests(plan, found) for plan in plans)
    left = tuple(without_failed(plan, failed) for plan in named)
    return left if left == named else await pin_images(session, left, failed, on_event, renew=renew)


async def _pin(session: Session, need: Need, on_event: OnEvent) -> Pinned | None:
    """Resolve one tag, and send its digest as an event."""
    settings = await staging_settings(session, on_event)
    found = await pin(session.channels, need, moving(session, on_event), settings=settings)
    if found is not None and need.hub != "never":
        digest = found.image.partition("@")[2]
        others = (
            f"; the other image of this tag on {', '.join(found.others)} is not used" if found.others else ""
        )
        on_event(FactFound(line=f"{need.wanted.name} is {digest[:19]}…, as on {found.node}{others}"))
    return found


async def stage_plans(
    session: Session, plans: Sequence[DeploymentPlan], on_event: OnEvent = ignored
) -> tuple[Staged, ...]:
    """Stage weights and images of first rungs, then the same ones on the nodes of lower rungs.

    If the fleet is this machine alone, built-in models are made at their start, and directories are there already. Images
    have digests, except those of lower rungs alone.

    Raises:
        StagingError: weights or an image of a first rung cannot be obtained, or there is no room for them.
        NodeError: a node of a first rung does not answer.
    """
    alone = len(session.inventory.nodes) == 1 and session.inventory.nodes[session.inventory.head].is_local
    needs = tuple(
        need for need in needs_of(plans) if not (alone and need.wanted.kind in ("builtin", "directory"))
    )
    if not needs:
        return ()
    settings = await staging_settings(session, on_event)
    found = await _stage(session, needs, settings, on_event)
    for need in fallbacks_of(plans):
        await _try_to_stage(session, need, settings, on_event)
    return found


async def staging_settings(session: Session, on_event: OnEvent) -> StagingSettings:
    """The Python of sparkfleet on every node, and the Hub's endpoint and token of this process's environment."""
    return StagingSettings(
        python=await session.programs.pythons(on_event),
        endpoint=os.environ.get("HF_ENDPOINT", ""),
        token=os.environ.get("HF_TOKEN", "").strip(),
        reserve_bytes=RESERVE_BYTES,
    )


async def staging_nodes(session: Session, on_event: OnEvent) -> StagingNodes:
    """The programs of staging on the nodes."""
    return StagingNodes(
        session.channels, await staging_settings(session, on_event), moving(session, on_event)
    )


def moving(session: Session, on_event: OnEvent) -> OnProgress:
    """Staging's progress as events. Several programs fail on a node that is off: it is noted once in a session."""

    def send(progress: TransferProgress) -> None:
        if progress.phase == "note" and not progress.name:
            if progress.text in session.noted:
                return
            session.noted.add(progress.text)
        on_event(BytesMoving(progress=progress))

    return send


async def _stage(
    session: Session, needs: Sequence[Need], settings: StagingSettings, on_event: OnEvent
) -> tuple[Staged, ...]:
    return await stage(
        session.inventory, session.channels, needs, moving(session, on_event), settings=settings
    )


async def _try_to_stage(session: Session, need: Need, settings: StagingSettings, on_event: OnEvent) -> None:
    """Stage a need of lower rungs alone. A failure is an event and stops nothing, because it is not needed now."""
    try:
        await _stage(session, (need,), settings, on_event)
    except NodeError as error:
        nodes = ", ".join(need.nodes)
        on_event(FactFound(line=f"Fallbacks on {nodes} are not available: {error.what}"))


def _things(candidate: Candidate) -> Iterable[tuple[str, str]]:
    if candidate.is_staged:
        yield "model", candidate.model
        if candidate.speculation.draft is not None:
            yield "model", candidate.speculation.draft
    if candidate.runtime == "container" and candidate.image:
        yield "image", candidate.image
