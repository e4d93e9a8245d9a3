"""Plans with one deployment otherwise, next to the plan that was made: the base of what a plan shows beside its choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.capacity.proposal import DEFAULT_CONTEXT
from sparkfleet.planner.types.plan import DeploymentPlan, Plan, Rung
from sparkfleet.specs.deployment import Deployment, SpeculationChoice

GAIN = 1.15
"""Least gain in predicted speed at which an alternative is shown: less is within the error of predictions."""
FEW = 4
"""Most deployments of a command line for which alternatives are planned: each of these is a plan of its own."""

Replan = Callable[[Sequence[Deployment], Mapping[str, Checkpoint]], Plan]
"""Plans deployments with facts of their checkpoints, by model, on the fleet as it is."""


class Replanning(NamedTuple):
    """A plan that was made, and the way to make it again."""

    specs: Sequence[Deployment]
    """All deployments of the plan."""
    plan: Plan
    checkpoints: Mapping[str, Checkpoint]
    """Facts, by model."""
    replan: Replan

    @property
    def candidates(self) -> Sequence[Deployment]:
        """Deployments for which alternatives are planned; none if there are many."""
        return self.specs if len(self.specs) <= FEW else ()

    def with_model(self, spec: Deployment, other: Checkpoint) -> Plan | None:
        """The plan with another checkpoint in one deployment; None if that is at another's expense."""
        return self._instead(spec, {"model": other.id}, {**self.checkpoints, other.id: other})

    def with_image(self, spec: Deployment, image: str) -> Plan | None:
        """The plan with an image in one deployment; None if that is at another's expense."""
        return self._instead(spec, {"image": image}, self.checkpoints)

    def with_speculation(self, spec: Deployment, wanted: Speculation) -> Plan | None:
        """The plan with a draft and its depth in one deployment; None if that is at another's expense."""
        pinned = SpeculationChoice(method=wanted.method, tokens=wanted.tokens or None, draft=wanted.draft)
        return self._instead(spec, {"speculation": pinned}, self.checkpoints)

    def _instead(
        self, spec: Deployment, update: Mapping[str, object], checkpoints: Mapping[str, Checkpoint]
    ) -> Plan | None:
        instead = [one.model_copy(update=update) if one is spec else one for one in self.specs]
        found = self.replan(instead, checkpoints)
        refused = {one.name for one in self.plan.refused}
        return found if refused.issuperset(one.name for one in found.refused) else None


def gain_of(before: DeploymentPlan, after: DeploymentPlan) -> float:
    """Predicted speed as a multiple of the plan's; 0 if either is not predicted: no gain is known."""
    return (after.tps or 0.0) / before.tps if before.tps else 0.0


def order_of(rung: Rung) -> tuple[bool, float]:
    """Key of alternatives of one deployment, the best first: those that hold a usual context, then by worth.

    Worth is the predicted speed held against what is published of it, as in the rank of candidates.
    """
    return rung.candidate.context < DEFAULT_CONTEXT, -rung.worth
