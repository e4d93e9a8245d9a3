"""Start attempts, persisted before launch, so that one that crashes its node is counted.

A Spark that runs out of memory does not end the start: it freezes and has to be switched off. The process that would have
reported the failure is gone with it, and its successor would do the same after each power cycle. So a start is stored
before it begins, with the boot ids of its nodes. If a node has another boot id while the start has not ended, the start took
it down, or it was switched off meanwhile: both count as a failed start.

If a node other than rank 0's goes down, the group itself reports the failure before the cause is known. So its nodes are
read once more before that is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.controlplane.policy.actions import Action, EndAttempt, WaitForBoots
from sparkfleet.controlplane.policy.state import FleetState, Now, SeenNodes
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase

ASK_S = 60.0
"""Time for nodes to report their boot ids after a restart of the controller: an actor on each has to start for that."""

RAY_GONE_S = 55.0
"""Seconds until Ray counts a node without power as gone: five checks of ten seconds each."""

SILENT_S = RAY_GONE_S + 5.0
"""Time to wait for a silent node after a failed start."""


def learnt_boots(
    starts: Mapping[GroupKey, Mapping[str, str]], nodes: SeenNodes
) -> dict[GroupKey, dict[str, str]]:
    """Boot ids of nodes that were away when a start began and have joined since, for each such start."""
    found = {
        group: {node: nodes.boots[node] for node, boot in begun.items() if not boot and nodes.boots.get(node)}
        for group, begun in starts.items()
    }
    return {group: known for group, known in found.items() if known}


def end_barred(state: FleetState, now: Now) -> list[Action]:
    """Ends start attempts of groups that wait for a drained node: it may be switched off meanwhile.

    One whose node was switched off before is counted first (`lost_starts`).
    """
    uncounted, boots = lost(state.starts, state.nodes), state.nodes.boots
    return [
        EndAttempt(group=report.group, reason="it waits for a drained node")
        for report in state.reports
        if report.phase is GroupPhase.BARRED
        and report.name in state.fresh
        and report.group in state.starts
        and report.group not in uncounted
        and all(boots.get(node) for node in state.starts[report.group])
    ]


def lost(starts: Mapping[GroupKey, Mapping[str, str]], nodes: SeenNodes) -> dict[GroupKey, Diagnosis]:
    """Unfinished starts whose nodes were switched off or restarted since, with the diagnosis."""
    found = {group: _restarted(begun, nodes) for group, begun in starts.items()}
    return {group: went_away(away) for group, away in found.items() if away}


def away(state: FleetState, group: GroupKey, nodes: Sequence[str], now: Now) -> tuple[str, ...] | None:
    """Nodes of a failed start that are away or went down since it began; None while that is not known.

    A node is present if it answers a reading that began after the failure, with the boot id of the start. A node that does
    not answer is away when its time is over.
    """
    seen, others = state.nodes, set(nodes) - {state.nodes.here}
    if not others:
        return ()
    if seen.looked_at is None:
        return None
    failed_at = state.pending.failed_at.get(group, now.steady)
    found = {*_restarted(state.starts.get(group, {}), seen), *(others - seen.boots.keys())}
    if found or seen.looked_at < failed_at:
        return tuple(sorted(found)) or None
    silent = tuple(sorted(node for node in others if not seen.boots[node]))
    return None if silent and now.steady - failed_at < SILENT_S else silent


def is_uncertain(state: FleetState, group: GroupKey, now: Now) -> bool:
    """True if a node has yet to report whether an unfinished start of this group took it down."""
    begun, seen, asked_at = state.starts.get(group, {}), state.nodes, state.pending.asked_at
    if not begun or (now.steady - (now.steady if asked_at is None else asked_at)) >= ASK_S:
        return False
    silent = [node for node, boot in begun.items() if boot and not seen.boots.get(node)]
    return any(node in seen.boots or seen.looked_at is None for node in silent)


def hold_back(state: FleetState, group: GroupKey) -> list[Action]:
    """Begins the wait for the boot ids of a group's nodes; one wait serves all groups."""
    if state.pending.asked_at is not None or not state.starts.get(group):
        return []
    return [
        WaitForBoots(group=group, reason="its nodes have to report whether its last start took them down")
    ]


def went_away(nodes: Sequence[str]) -> Diagnosis:
    """The diagnosis of a start whose nodes went away meanwhile."""
    summary = f"{' and '.join(nodes)} went away while it was starting: switched off, disconnected, or out of memory."
    return Diagnosis(cause=Cause.AWAY, summary=summary)


def _restarted(begun: Mapping[str, str], nodes: SeenNodes) -> tuple[str, ...]:
    """Nodes with another boot id than at the beginning of the start."""
    boots = {node: nodes.boots.get(node, "") for node in begun}
    return tuple(sorted(node for node, boot in begun.items() if boot and boots[node] not in ("", boot)))
