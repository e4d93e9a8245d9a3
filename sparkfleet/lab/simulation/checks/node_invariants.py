"""Invariants of nodes that are gone or drained: no group waits for one, starts on one or falls to one without need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.checks.invariants import TOP
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.planner.types.plan import GroupPlan

LEAVES_S = 240.0
"""Seconds after `GONE_S` in which a group has left a node that is gone."""


def stays_on_gone_nodes(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    fleet: SimulatedFleet,
    since: Mapping[GroupKey, float],
    working_since: float,
    *,
    drained: frozenset[str],
) -> Iterator[str]:
    """Groups that wait for a node that has been gone for long, although a rung below does without.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        fleet: the machines.
        since: when each group was applied, or an older one served last, simulated seconds.
        working_since: since when the controller works without a break, simulated seconds.
        drained: nodes on which nothing is to be started.
    """
    now, away = fleet.time.seconds, drained | _away(fleet)
    gone = {
        n.name
        for n in fleet.nodes.values()
        if n.away_since is not None and now - max(n.away_since, working_since) > GONE_S + LEAVES_S
    }
    if not gone:
        return
    for one in wanted.values():
        if older_serves(one, fleet):
            continue  # as long as an older group serves, a new one waits for the memory of its nodes
        for group, plan in one.planned():
            standing = standings.get(group, TOP)
            nodes = _nodes_below(plan, standing)
            stuck = nodes and nodes[0] & gone and not all(other & away for other in nodes)
            if stuck and not standing.given_up and now - max(since[group], working_since) > GONE_S + LEAVES_S:
                yield f"{now:.1f} s: {name_of(group)} waits for {sorted(nodes[0] & gone)}"


def begun_on_drained(
    began: Sequence[tuple[float, GroupKey, tuple[str, ...]]], drained: frozenset[str]
) -> Iterator[str]:
    """Engines that were started on a drained node, although the controller answered their group.

    Args:
        began: engines that were started: when, of which group, on which nodes.
        drained: nodes that were drained then.
    """
    for at, group, nodes in began:
        if on := sorted(drained.intersection(nodes)):
            yield f"{at:.1f} s: {name_of(group)} was started on {on}: drained"


def falls_on_drained(
    wanted: Mapping[str, Desired],
    before: Mapping[GroupKey, Standing],
    standings: Mapping[GroupKey, Standing],
    drained: frozenset[str],
    now: float,
) -> Iterator[str]:
    """Groups that took a lower rung on a drained node.

    Args:
        wanted: deployments that are to run.
        before: places on the ladders before a step.
        standings: those after it.
        drained: nodes that were drained before it.
        now: simulated seconds.
    """
    for one in wanted.values() if drained else ():
        for group, plan in one.planned():
            was, standing = before.get(group), standings.get(group, TOP)
            if was is None or standing.rung <= was.rung:
                continue
            if on := sorted(drained.intersection(plan.ladder[standing.rung].candidate.shape.nodes)):
                yield f"{now:.1f} s: {name_of(group)} took rung {standing.rung + 1} on {on}: drained"


def stays_on_drained_nodes(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    fleet: SimulatedFleet,
    serve: SimulatedServe,
    *,
    drained: frozenset[str],
    working_since: float,
) -> Iterator[str]:
    """Groups that have waited for a drained node for long, although a rung below does without.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        fleet: the machines.
        serve: the applications.
        drained: nodes that are drained.
        working_since: since when the controller works without a break, simulated seconds.
    """
    if not drained:
        return
    now, away = fleet.time.seconds, _away(fleet)
    for one in wanted.values():
        for group, plan in one.planned():
            app, standing = serve.apps.get(group), standings.get(group, TOP)
            if app is None or app.phase is not GroupPhase.BARRED or app.status == "retiring":
                continue
            nodes = _nodes_below(plan, standing)
            is_possible = any(not other & (away | drained) for other in nodes)
            since = max(app.barred_since, working_since)
            if (
                nodes
                and nodes[0] & drained
                and is_possible
                and not standing.given_up
                and now - since > LEAVES_S
            ):
                yield f"{now:.1f} s: {name_of(group)} waits for {sorted(nodes[0] & drained)}: drained"


def _nodes_below(plan: GroupPlan, standing: Standing) -> list[set[str]]:
    """Nodes of each rung that a group may take, from its position on; of one that is bound only those of its first rung."""
    at = min(standing.rung, len(plan.ladder) - 1)  # it fell while the plan with fewer rungs was made
    rungs = (rung for rung in plan.ladder[at:] if not (standing.bound and plan.is_elsewhere(rung)))
    return [set(rung.candidate.shape.nodes) for rung in rungs]


def _away(fleet: SimulatedFleet) -> frozenset[str]:
    """Nodes that are away, or have just come back."""
    now = fleet.time.seconds
    return frozenset(
        n.name for n in fleet.nodes.values() if n.away_since is not None or now - n.joined_since < LEAVES_S
    )


def older_serves(one: Desired, fleet: SimulatedFleet) -> bool:
    """True while a group of an earlier generation serves."""
    return any(
        e.ready and e.group[0] == one.name and e.group not in one.groups for e in fleet.engines.values()
    )
