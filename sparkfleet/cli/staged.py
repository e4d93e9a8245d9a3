"""Brings what a plan needs to the nodes that need it, before anything is started there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from sparkfleet.cli.models import progress_text
from sparkfleet.cli.session import Session
from sparkfleet.cli.watch import Progress
from sparkfleet.planning.plan import Candidate, DeploymentPlan
from sparkfleet.staging.progress import Progress as Step
from sparkfleet.staging.settings import Need, Settings, Staged
from sparkfleet.staging.stage import stage


def needs_of(plans: Iterable[DeploymentPlan]) -> tuple[Need, ...]:
    """What the first rungs of these plans need, and where: checkpoints, drafts, images."""
    where: dict[tuple[str, str], dict[str, None]] = {}
    for candidate in (group.choice.candidate for plan in plans for group in plan.groups):
        for thing in _things(candidate):
            where.setdefault(thing, {}).update(dict.fromkeys(candidate.shape.nodes))
    return tuple(
        Need.image(name, tuple(nodes)) if kind == "image" else Need.model(name, tuple(nodes))
        for (kind, name), nodes in where.items()
    )


async def bring(session: Session, plans: Sequence[DeploymentPlan], progress: Progress) -> tuple[Staged, ...]:
    """Bring it. On this machine alone, embedded models are made when they start, and directories are there.

    Raises:
        StagingError: something cannot be had, or there is no room for it.
        NodeError: a node does not answer.
    """
    alone = len(session.inventory.nodes) == 1 and session.inventory.nodes[session.inventory.head].is_local
    needs = tuple(need for need in needs_of(plans) if not (alone and need.wanted.kind != "hub"))
    if not needs:
        return ()
    settings = Settings(
        python=await session.pythons(progress.passing),
        endpoint=os.environ.get("HF_ENDPOINT", ""),
        token=os.environ.get("HF_TOKEN", "").strip(),
    )
    try:
        return await stage(
            session.inventory, session.channels, needs, lambda step: _show(step, progress), settings=settings
        )
    finally:
        progress.done()


def _things(candidate: Candidate) -> Iterable[tuple[str, str]]:
    if candidate.engine != "custom":
        yield "model", candidate.model
        if candidate.speculation.draft is not None:
            yield "model", candidate.speculation.draft
    if candidate.runtime == "container" and candidate.image:
        yield "image", candidate.image


def _show(step: Step, progress: Progress) -> None:
    progress.passing(progress_text(step))
