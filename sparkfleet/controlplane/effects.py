"""Carries the policy's actions out: writes to the store, events, and applications. It decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sparkfleet.controlplane.clocks import Clocks, read_clocks
from sparkfleet.controlplane.desired import Desired, GroupKey, rungs_of
from sparkfleet.controlplane.policy.actions import (
    Action,
    BeginAttempt,
    EndAttempt,
    EndGroup,
    ForgetFailure,
    ForgetGroup,
    GiveUp,
    KeepStanding,
    KnowBoots,
    LadderStep,
    RememberFailure,
    RestartGroup,
    RetireGroup,
    StartGroup,
    WaitForMemory,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.after import begun, pending_after
from sparkfleet.controlplane.policy.pending_starts import learn_boots
from sparkfleet.controlplane.policy.state import FleetState, Pending, SeenNodes, name_of
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.nodes import Nodes
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.group.launch_plan import GroupLaunch
from sparkfleet.telemetry.metrics import ControlMetrics

LaunchesOf = Callable[[Desired, Mapping[int, int]], Sequence[GroupLaunch]]


@dataclass(frozen=True)
class Surroundings:
    """Parts of the controller that effects use."""

    launches_of: LaunchesOf
    """The launch of each group of a deployment, given the rung of each group."""
    leave: Callable[[GroupKey], Awaitable[None]]
    """Takes a group out of the gateways' table."""
    kept: Callable[[], frozenset[GroupKey]]
    """Groups whose ranks may run."""


class Effects:
    """Stores, records and carries out actions.

    Args:
        store: keeps standings, starts and failures.
        apps: run the groups.
        nodes: the nodes of the fleet.
        journal: keeps events.
        metrics: counts groups that were given up.
        here: the node that the controller runs on.
        around: functions of the controller.
        clocks: replaceable by a simulation.
    """

    def __init__(
        self,
        *,
        store: Store,
        apps: ServeBackend,
        nodes: Nodes,
        journal: EventLog,
        metrics: ControlMetrics,
        here: NodeReport,
        around: Surroundings,
        clocks: Clocks = read_clocks,
    ) -> None:
        self._store = store
        self._apps = apps
        self._machines = nodes
        self._journal = journal
        self._metrics = metrics
        self._around = around
        self._clocks = clocks
        self.nodes = SeenNodes.only(here)
        self.pending = Pending()

    def see(self, nodes: Collection[NodeReport], began: float) -> None:
        """Takes the current state of the nodes; `began` is the start of the reading, on the monotonic clock."""
        now = self._clocks()
        self.nodes = self.nodes.seen(nodes, began, now)
        # At once: if a node goes down before the next round, its boot would never be known.
        for action in learn_boots(FleetState(starts=self._store.groups.starts(), nodes=self.nodes), now):
            self._keep(action)

    def forget_answers(self, failed: Collection[str]) -> None:
        """Forgets the answered failures of applications that are no longer failed."""
        self.pending = self.pending.answered_only(failed)

    async def carry_out(self, actions: Sequence[Action], desired: Mapping[str, Desired]) -> None:
        """Stores all actions first, without a pause, so that no report arrives between a decision and its storage.

        Args:
            actions: in their order.
            desired: the deployments of the decision.
        """
        for action in actions:
            if not isinstance(action, (StartGroup, RestartGroup)):
                self._keep(action)
        for action in actions:
            await self._record(action)
        for action in actions:
            await self._do(action, desired)

    def _keep(self, action: Action) -> None:
        self._write(action)
        self.pending = pending_after(self.pending, action, self._clocks())

    def _write(self, action: Action) -> None:
        if isinstance(action, KeepStanding):
            self._store.groups.set_standing(*action.group, action.standing)
        match action:
            case EndAttempt(group=group) | GiveUp(group=group):
                self._store.groups.end_start(group)
            case LadderStep(group=group, nodes=nodes):
                self._store.groups.end_start(group)
                self._store.groups.begin_start(group, begun({}, nodes, self.nodes.boots))
            case BeginAttempt(group=group, nodes=nodes):
                self._store.groups.begin_start(group, begun({}, nodes, self.nodes.boots))
            case KnowBoots(group=group, boots=boots):
                self._store.groups.begin_start(group, boots)
            case ForgetGroup(group=group):
                self._store.groups.forget(group)
            case RememberFailure():
                self._store.failures.remember(action.fingerprint, action.reason, action.lasts_s)
            case ForgetFailure():
                self._store.failures.forget(action.fingerprint)

    async def _record(self, action: Action) -> None:
        match action:
            case LadderStep(group=group):
                await self._journal.record(*group[:2], name_of(group), "fallback", action.reason)
            case GiveUp(group=group):
                self._metrics.starts.labels(group[0], "failed").inc()
                await self._journal.record(*group[:2], name_of(group), "failed", action.reason)
            case WaitForNodes(group=group):
                await self._journal.record(*group[:2], name_of(group), "waits", action.reason)
            case WaitForMemory(deployment=name, generation=generation):
                await self._journal.record(name, generation, f"{name}/g{generation}", "waits", action.reason)

    async def _do(self, action: Action, desired: Mapping[str, Desired]) -> None:
        match action:
            case StartGroup(group=group):
                await self._journal.record(*group[:2], name_of(group), "deploy", action.reason)
                await self._machines.sweep(self._around.kept())
                self._keep(action)
                await self._apps.deploy(self._launch(desired[group[0]], group))
            case RestartGroup(group=group):
                self._write(action)
                await self._apps.deploy(self._launch(desired[group[0]], group))
                # Only now: if Serve did not accept the launch, a counted failure is not counted again.
                self.pending = pending_after(self.pending, action, self._clocks())
            case RetireGroup(group=group):
                await self._around.leave(group)
                await self._journal.record(*group[:2], "", "retire", action.reason)
                await self._apps.retire(*group)
            case EndGroup(group=group):
                await self._apps.retire(*group)

    def _launch(self, desired: Desired, group: GroupKey) -> GroupLaunch:
        rungs = rungs_of(desired, self._store.groups.standings())
        return self._around.launches_of(desired, rungs)[desired.groups.index(group)]
