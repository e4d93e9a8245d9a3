"""A plan of known checkpoints on assumed Sparks, with the way to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.replanning import Replanning
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.plan import Plan
from sparkfleet.specs.deployment import Deployment


def replanning(fleet: Fleet, *specs: Deployment) -> Replanning:
    """Of models that are not known by name there is no plan."""
    known = {spec.model: known_checkpoint(spec.model) for spec in specs if spec.model}
    checkpoints = {model: one for model, one in known.items() if one is not None}

    def replan(specs: Sequence[Deployment], checkpoints: Mapping[str, Checkpoint]) -> Plan:
        return plan_fleet(specs, fleet, checkpoints)

    return Replanning(specs, replan(specs, checkpoints), checkpoints, replan)
