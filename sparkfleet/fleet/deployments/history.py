"""Generations of a deployment, and what changed from one to the next."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.deployments.status import find
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_name import short_name
from sparkfleet.planner.report.diff import changed_fields
from sparkfleet.values import Value


class GenerationEntry(Value):
    """One generation of a deployment, and its difference to the one before it."""

    generation: int
    who: str
    since: float
    """Unix seconds."""
    groups: tuple[str, ...]
    """Names of its groups: `g1/0` if the first generation started it."""
    fields: tuple[str, ...]
    """`field: before → after`; empty for the first."""
    current: bool
    """True for the one that is desired now."""


class DeploymentHistory(NamedTuple):
    """A deployment and the generations that are kept."""

    status: DeploymentStatus | None
    """None if it was deleted."""
    generations: tuple[Desired, ...]
    """Oldest first."""

    def entries(self) -> tuple[GenerationEntry, ...]:
        """Each generation in words, oldest first."""
        before = (None, *self.generations)
        return tuple(self._entry(one, older) for one, older in zip(self.generations, before, strict=False))

    def _entry(self, one: Desired, before: Desired | None) -> GenerationEntry:
        return GenerationEntry(
            generation=one.generation,
            who=one.who,
            since=one.since,
            groups=tuple(short_name(group) for group in one.groups),
            fields=changed_fields(before.spec, before.plan, one.spec, one.plan) if before else (),
            current=self.status is not None and self.status.generation == one.generation,
        )


async def history_of(session: Session, name: str) -> DeploymentHistory:
    """The generations of a deployment. Raises ControlError if the fleet is down, or none of that name was ever applied."""
    async with await session.controller() as client:
        status = await client.fleet()
        generations = await client.history(name)
    current = next((one for one in status.deployments if one.name == name and one.plan is not None), None)
    if not generations and current is None:
        find(status, name)  # raises, with the known names
    return DeploymentHistory(current, generations)
