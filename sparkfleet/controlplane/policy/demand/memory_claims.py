"""Claims to memory: deployments that have to start, in the order in which they get it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkfleet.controlplane.policy.demand.loaded_memory import has_group
from sparkfleet.controlplane.policy.ladder import rung_without
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, added, needed, unblocked
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.start_choice import StartChoice, loadable
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey
from sparkfleet.units import gib


@dataclass(frozen=True)
class Claim:
    """A deployment that has to start, with the memory that it needs."""

    desired: Desired
    """The generation to start: the desired one, or the last that served."""
    groups: tuple[GroupKey, ...]
    """Its groups that have to start."""
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
        claim_of(state, loadable(state, one)[0], since, blocked) for since, one in waiting(state)
    ]


def claim_of(state: FleetState, choice: StartChoice, since: float, blocked: frozenset[str]) -> Claim:
    """The claim of a generation of a deployment on demand. One that served before starts at the rungs at which it served."""
    one, groups = choice
    is_desired = state.applied[one.name] is one
    return Claim(
        one, groups, *needs_at_start(state, one, groups, blocked if is_desired else frozenset()), since
    )


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
        if (one := state.applied[name]).spec.on_demand and loadable(state, one)
    ]


def waits_for_long(state: FleetState, desired: Desired, now: Now) -> bool:
    """True if a request has waited for the start of a deployment that is not loaded for as long as one waits for a node that
    is away."""
    demand = state.demand.get(desired.name)
    if demand is None or demand.waiting_since is None or state.is_loaded(desired):
        return False
    return now.steady - demand.waiting_since >= GONE_S


def missing_on_demand(state: FleetState) -> list[tuple[Desired, list[GroupKey]]]:
    """Groups of loaded deployments that are to start and have nothing to end first.

    Those of which no group runs come before further groups of those that serve already.
    """
    found: dict[str, list[GroupKey]] = {}
    for one, group in unblocked(state):
        if one.spec.on_demand:
            found.setdefault(one.name, []).append(group)
    return sorted(
        ((state.to_run[name], groups) for name, groups in found.items()),
        key=lambda each: has_group(state, each[0]),
    )


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


def _always(state: FleetState, desired: Desired, groups: Sequence[GroupKey]) -> Claim:
    needs = needed(state, desired, groups)
    return Claim(desired, tuple(groups), needs, needs, None)
