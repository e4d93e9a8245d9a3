"""Deployments and launches of the simulation: only the fields that the controller decides by."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_launch import GroupLaunch, RankPlacement
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.fleet import MEMORY, SMALL_MEMORY, SYSTEM
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GIB

SHARE_GIB = 55
"""Most that one deployment takes of a node: two fit on it, and hardly a second generation of one of them beside."""


HIGH = 1.1
"""High end of a predicted band over its middle."""
SMALL_SHARE_GIB = 30
"""The same if deployments on demand share the nodes."""
IDLE_S = (None, None, 30, 300)
"""Choices of `idle`."""


def random_plan(
    name: str,
    nodes: Sequence[str],
    chance: random.Random,
    share_gib: int = SHARE_GIB,
    small: Collection[str] = (),
) -> tuple[Deployment, DeploymentPlan]:
    """A deployment of one or two groups, each with a ladder of one to three rungs on one or two nodes.

    Args:
        name: its name.
        nodes: the nodes that it may be on.
        chance: the seed's.
        share_gib: most that it takes of a node.
        small: nodes with 64 GB, on which it takes as large a share of less.
    """
    spec = Deployment(name=name, model="builtin:tiny", concurrency=chance.randrange(1, 1000))
    count = chance.choice((1, 1, 2))
    groups = tuple(_group(nodes, share_gib // count, chance, small) for _ in range(count))
    return spec, DeploymentPlan(name=name, objective="interactive", groups=groups)


def demanded_plan(
    name: str, left_gib: Mapping[str, int], chance: random.Random
) -> tuple[Deployment, DeploymentPlan]:
    """A deployment on demand: one group, planned for what the others that are not on demand leave of each node, GiB."""
    spec = Deployment(
        name=name,
        model="builtin:tiny",
        concurrency=chance.randrange(1, 1000),
        on_demand=True,
        idle=chance.choice(IDLE_S),
    )
    share = chance.uniform(0.3, 0.95) / HIGH
    rungs = tuple(_rung_of(left_gib, share, chance) for _ in range(chance.choice((1, 1, 2))))
    return spec, DeploymentPlan(name=name, objective="interactive", groups=(GroupPlan(ladder=rungs),))


def _rung_of(left_gib: Mapping[str, int], share: float, chance: random.Random) -> Rung:
    size = chance.choice((1, 1, min(2, len(left_gib))))
    nodes = tuple(chance.sample(sorted(left_gib), size))
    return _made(nodes, int(share * min(left_gib[node] for node in nodes)))


def edited(
    now: Desired, history: Sequence[Desired], other: tuple[Deployment, DeploymentPlan], chance: random.Random
) -> tuple[Deployment, DeploymentPlan]:
    """A change of a deployment as people make it: of words only, of the number of groups, or back to an earlier generation.

    Args:
        now: the deployment.
        history: its generations.
        other: another deployment and plan of that name, the source of a further group.
        chance: the seed's.
    """
    words = now.spec.model_copy(update={"concurrency": chance.randrange(1, 1000)})
    match chance.choice(("words", "more", "fewer", "one changed", "back")):
        case "more":
            groups = (*now.plan.groups, other[1].groups[0])
        case "fewer":
            gone = chance.randrange(len(now.plan.groups))
            groups = tuple(g for at, g in enumerate(now.plan.groups) if at != gone) or now.plan.groups
        case "one changed":
            groups = (*now.plan.groups[:-1], other[1].groups[0])
        case "back":
            earlier = chance.choice(history)
            return earlier.spec, earlier.plan
        case _:
            groups = now.plan.groups
    return words, now.plan.model_copy(update={"groups": groups})


def with_other_engines(plan: DeploymentPlan, context: int) -> DeploymentPlan:
    """The plan with another context in each rung: no group carries an engine over."""
    groups = tuple(
        GroupPlan(
            ladder=tuple(
                rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"context": context})})
                for rung in group.ladder
            )
        )
        for group in plan.groups
    )
    return plan.model_copy(update={"groups": groups})


def _group(nodes: Sequence[str], most_gib: int, chance: random.Random, small: Collection[str]) -> GroupPlan:
    needs = chance.randrange(most_gib // 2, most_gib)
    rungs = tuple(_rung(nodes, needs - 2 * at, chance, small) for at in range(chance.choice((1, 2, 2, 3))))
    return GroupPlan(ladder=rungs)


def _rung(nodes: Sequence[str], needs_gib: int, chance: random.Random, small: Collection[str]) -> Rung:
    size = chance.choice((1, 1, min(2, len(nodes))))
    taken = tuple(chance.sample(list(nodes), size))
    share = (SMALL_MEMORY - SYSTEM) / (MEMORY - SYSTEM) if set(small) & set(taken) else 1.0
    return _made(taken, int(needs_gib * share))


def _made(nodes: tuple[str, ...], needs_gib: int) -> Rung:
    candidate = Candidate(
        model="builtin:tiny",
        shape=GroupShape(nodes=nodes, tp=len(nodes)),
        engine="vllm",
        engine_version="0",
        context=512,
        concurrency=4,
    )
    needs = max(1, needs_gib) * float(GIB)
    memory = Band(low=needs, mid=needs, high=HIGH * needs)
    return Rung(candidate=candidate, prediction=Prediction(memory_bytes_per_rank=memory), reason="simulated")


def launch(desired: Desired, group: GroupKey, at: int) -> GroupLaunch:
    """Launch of a group, without addresses."""
    name, generation, replica = group
    plan = desired.plan_of(group)
    rung = plan.rung_at(at)
    return GroupLaunch(
        deployment=name,
        generation=generation,
        replica=replica,
        rung=plan.rung_index(at),
        candidate=rung.candidate,
        needs=int(rung.prediction.memory_bytes_per_rank.mid),
        placements=tuple(RankPlacement(node=node) for node in rung.candidate.shape.nodes),
    )
