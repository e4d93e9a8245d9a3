"""Groups that were given up because memory was not free: each starts again once it is, a few times.

They get only what is free beside everything that runs, and only while nothing else starts, waits for memory or is replaced:
a retry never takes memory from what serves. A group of a deployment whose older generation still serves is not
started again: that would have to end first.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, LadderStep, RestartGroup
from sparkfleet.controlplane.policy.ladder import RETRIES, rung_words
from sparkfleet.controlplane.policy.rolling_update import rolling_updates
from sparkfleet.controlplane.policy.state import FleetState, Now, replaced
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey
from sparkfleet.planner.types.plan import Rung


def refused(state: FleetState) -> list[tuple[Desired, GroupKey]]:
    """Groups that start again as soon as memory is free, each with its deployment."""
    ended = {app.group: app.status == "failed" for app in state.apps}
    return [
        (desired, group)
        for desired in state.to_run.values()
        if not replaced(state, desired)
        for group in desired.groups
        if ended.get(group, True)
        and state.standing(group).given_up
        and 0 < state.standing(group).refused <= RETRIES
    ]


def retry_refused(state: FleetState, now: Now) -> list[Action]:
    """Starts one of them at the rung that it was refused, if its nodes have the memory; the others wait for its end."""
    if state.starts or rolling_updates(state) or any(map(state.is_loading, state.to_run.values())):
        return []
    for desired, group in refused(state):
        plan, standing = desired.plan_of(group), state.standing(group)
        # Those that it left for a lost node first: it may be back.
        for at in (*standing.vacated, standing.rung):
            if _fits(state, plan.rung_at(at)):
                return _again(state, group, plan.rung_index(at), plan.rung_at(at))
    return []


def _fits(state: FleetState, rung: Rung) -> bool:
    nodes, need = rung.candidate.shape.nodes, rung.prediction.memory_bytes_per_rank.high
    return state.drained.isdisjoint(nodes) and all(state.available.get(node, -1) >= need for node in nodes)


def _again(state: FleetState, group: GroupKey, at: int, rung: Rung) -> list[Action]:
    before, nodes = state.standing(group), rung.candidate.shape.nodes
    vacated = tuple(one for one in before.vacated if one < at)
    fields = {
        "rung": at,
        "given_up": False,
        "tries": 0,
        "restarts": 0,
        "passed": before.passed[:at],
        "vacated": vacated,
        "starved": before.starved if at == before.rung else (),
    }
    why = (
        f"the memory that {rung_words(rung)} needs is free again: it starts once more"
        f" ({before.refused} of {RETRIES} times since it was ready)"
    )
    actions: list[Action] = [
        LadderStep(group=group, standing=before.model_copy(update=fields), nodes=nodes, reason=why)
    ]
    if any(app.group == group for app in state.apps):
        actions.append(RestartGroup(group=group, nodes=nodes, reason=why, answers=True))
    return actions
