"""Claims to memory: deployments that have to start, in the order in which they get it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkfleet.controlplane.policy.ladder import RETRIES, rung_without
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, added, needed, unblocked
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey
from sparkfleet.units import gib


@dataclass(frozen=True)
class Claim:
    """A deployment that has to start, with the memory that it needs."""

    desired: Desired
    needs: dict[str, int]
    """Bytes on each node, by the high end of the predicted band."""
    planned: dict[str, int]
    """The same by its middle, which the planner counts with."""
    since: float | None
    """Time since which requests wait for it (steady clock); None: it is not on demand."""


def claims(state: FleetState, blocked: frozenset[str]) -> list[Claim]:
    """Deployments that have to start: first those that are not on demand, then the others in the order of their requests.

    Args:
        blocked: nodes without which one on demand starts at a lower rung, if it has one.
    """
    return always_claims(state) + [
        Claim(one, *needs_at_start(state, one, one.groups, blocked), since) for since, one in waiting(state)
    ]


def always_claims(state: FleetState) -> list[Claim]:
    """Claims of deployments that are not on demand."""
    return [_always(state, state.to_run[name], groups) for name, groups in missing_always(state).items()]


def missing_always(state: FleetState) -> dict[str, list[GroupKey]]:
    """Groups of each deployment that is not on demand which are to start and have nothing to end first."""
    found: dict[str, list[GroupKey]] = {}
    for desired, group in (*unblocked(state), *refused(state)):
        if not desired.spec.on_demand:
            found.setdefault(desired.name, []).append(group)
    return found


def waiting(state: FleetState) -> list[tuple[float, Desired]]:
    """Deployments on demand that requests wait for and that are not loaded, in the order of these, each with its time."""
    found = sorted(
        (demand.waiting_since, name)
        for name, demand in state.demand.items()
        if demand.waiting_since is not None and name in state.applied and name not in state.to_run
    )
    return [
        (since, one)
        for since, name in found
        if (one := state.applied[name]).spec.on_demand
        if not state.has_given_up(one) or starts_again(state, one)
    ]


def starts_again(state: FleetState, desired: Desired) -> bool:
    """True if a deployment on demand that was given up was only refused its memory: its next request starts it again."""
    given_up = [one for one in map(state.standing, desired.groups) if one.given_up]
    return (
        desired.spec.on_demand
        and not state.is_loaded(desired)
        and bool(given_up)
        and all(0 < one.refused <= RETRIES for one in given_up)
    )


def missing_on_demand(state: FleetState) -> list[tuple[Desired, list[GroupKey]]]:
    """Groups of loaded deployments that are to start and have nothing to end first."""
    found: dict[str, list[GroupKey]] = {}
    for one, group in unblocked(state):
        if one.spec.on_demand:
            found.setdefault(one.name, []).append(group)
    return [(state.to_run[name], groups) for name, groups in found.items()]


def obstacle(state: FleetState, claim: Claim) -> str:
    """The reason in words for which a deployment cannot start on its nodes, whatever memory they have; "" for none."""
    for node in sorted(claim.needs):
        if node in state.drained:
            return f"{node} is drained; it starts after `sparkfleet undrain {node}`"
        if node in state.nodes.away_since:
            return f"{node} does not answer; it starts when that is back"
        if node in state.unusable:
            return f"{node}: {state.unusable[node]}"
        if node not in state.available:
            return f"the free memory of {node} is not known; it starts once that is reported"
    return ""


def lack(claim: Claim, free: FreeMemory) -> str:
    """The memory that is missing, of which nothing on demand has enough."""
    lacking = free.lacking(claim.needs)
    node = max(lacking, key=lambda name: lacking[name])
    # Without the free memory, which is another one in each round: this is recorded once.
    return (
        f"it may need {gib(claim.needs[node])} on {node}, which is more than is free, and nothing that could end"
        " for it holds as much"
    )


def needs_at_start(
    state: FleetState, desired: Desired, groups: Iterable[GroupKey], blocked: frozenset[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes on each node at the rungs at which groups of a deployment start: the high end of the band, and its middle.

    Args:
        blocked: nodes without which one starts at a lower rung, if it has one.
    """
    needs, planned = dict[str, int](), dict[str, int]()
    for group in groups:
        plan, at = desired.plan_of(group), state.standing(group).rung
        without = rung_without(plan, blocked, at)
        rung = plan.rung_at(at if without is None else without)
        memory, nodes = rung.prediction.memory_bytes_per_rank, rung.candidate.shape.nodes
        needs = added(needs, dict.fromkeys(nodes, int(memory.high)))
        planned = added(planned, dict.fromkeys(nodes, int(memory.mid)))
    return needs, planned


def _always(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> Claim:
    needs = needed(state, desired, groups)
    return Claim(desired, needs, needs, None)
