"""Deployments and launches of the simulation: only the fields that the controller decides by."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from sparkfleet.controlplane.desired import Desired
from sparkfleet.group.launch_plan import GroupLaunch, RankPlacement
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GIB

SHARE_GIB = 55
"""Most that one deployment takes of a node: two fit on it, and hardly a second generation of one of them beside."""


def random_plan(name: str, nodes: Sequence[str], chance: random.Random) -> tuple[Deployment, DeploymentPlan]:
    """A deployment of one or two groups, each with a ladder of one to three rungs on one or two nodes."""
    spec = Deployment(name=name, model="builtin:tiny", concurrency=chance.randrange(1, 1000))
    count = chance.choice((1, 1, 2))
    groups = tuple(_group(nodes, SHARE_GIB // count, chance) for _ in range(count))
    return spec, DeploymentPlan(name=name, objective="interactive", groups=groups)


def _group(nodes: Sequence[str], most_gib: int, chance: random.Random) -> GroupPlan:
    needs = chance.randrange(most_gib // 2, most_gib)
    rungs = tuple(_rung(nodes, needs - 2 * at, chance) for at in range(chance.choice((1, 2, 2, 3))))
    return GroupPlan(ladder=rungs)


def _rung(nodes: Sequence[str], needs_gib: int, chance: random.Random) -> Rung:
    size = chance.choice((1, 1, min(2, len(nodes))))
    candidate = Candidate(
        model="builtin:tiny",
        shape=GroupShape(nodes=tuple(chance.sample(list(nodes), size)), tp=size),
        engine="vllm",
        engine_version="0",
        context=512,
        concurrency=4,
    )
    needs = max(1, needs_gib) * float(GIB)
    memory = Band(low=needs, mid=needs, high=1.1 * needs)
    return Rung(candidate=candidate, prediction=Prediction(memory_bytes_per_rank=memory), reason="simulated")


def launches(desired: Desired, rungs: Mapping[int, int]) -> tuple[GroupLaunch, ...]:
    """Launch of each group, without addresses."""
    return tuple(
        GroupLaunch(
            deployment=desired.name,
            generation=desired.generation,
            replica=replica,
            rung=at,
            candidate=rung.candidate,
            needs=int(rung.prediction.memory_bytes_per_rank.mid),
            seats=tuple(RankPlacement(node=node) for node in rung.candidate.shape.nodes),
        )
        for replica, group in enumerate(desired.plan.groups)
        for at in [min(rungs.get(replica, 0), len(group.ladder) - 1)]
        for rung in [group.ladder[at]]
    )
