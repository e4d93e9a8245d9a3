"""Carries the policy's actions out: writes to the store, events, and applications. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import replace

from sparkfleet.controlplane.clocks import Clocks
from sparkfleet.controlplane.nodes import SWEEP_S, Nodes
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.actions import (
    Action,
    BeginAttempt,
    EndAttempt,
    EndGroup,
    ForgetFailure,
    ForgetGroup,
    GiveUp,
    GroupAction,
    KeepStanding,
    LadderStep,
    LoadDeployment,
    RememberFailure,
    RestartGroup,
    RetireGroup,
    StartGroup,
    StayUp,
    UnloadDeployment,
    WaitForMemory,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.actual_rung import go_on
from sparkfleet.controlplane.policy.state import NEVER_FAILED, FleetState
from sparkfleet.controlplane.policy.state_after import begun, pending_after
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.errors import SparkfleetError
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.telemetry.metrics import ControlMetrics

log = logging.getLogger(__name__)

LaunchOf = Callable[[Desired, GroupKey, int], GroupLaunch]
"""The launch of a group of a deployment at this rung. Raises SparkfleetError if it has none on the present nodes."""


class Effects:
    """Stores, records and carries out actions.

    Args:
        fleet: keeps standings, starts and failures in its store, and the pending decisions.
        leave: takes a group out of the gateways' table; False if it cannot yet.
    """

    def __init__(
        self,
        *,
        fleet: ObservedFleet,
        serve: ServeBackend,
        nodes: Nodes,
        event_log: EventLog,
        metrics: ControlMetrics,
        launch_of: LaunchOf,
        leave: Callable[[GroupKey], Awaitable[bool]],
        clocks: Clocks,
    ) -> None:
        self._fleet = fleet
        self._store = fleet.store
        self._serve = serve
        self._nodes = nodes
        self._event_log = event_log
        self._metrics = metrics
        self._launch_of = launch_of
        self._leave = leave
        self._clocks = clocks

    async def carry_out(self, actions: Sequence[Action], state: FleetState) -> None:
        """Carries out what was decided from a state.

        Stores all actions first, without a pause, so that no report arrives between a decision and its storage; all or none
        of them, so that a full disk counts nothing twice.
        """
        with _on_a_full_disk_too(state):
            self._keep(*(one for one in actions if not isinstance(one, (StartGroup, RestartGroup))))
        state = replace(state, pending=self._fleet.pending)  # what has just been loaded is to run
        may_come_up = any(isinstance(one, (RestartGroup, EndGroup)) for one in actions)
        ready = self._fleet.state().ready_groups() if may_come_up else frozenset()
        for action in actions:
            await self._record(action)
        for action in actions:
            if isinstance(action, (RestartGroup, EndGroup)) and self._came_up(action, ready):
                await self._let_go_on(action)
            else:
                await self._do(action, state)
        await self._start([one for one in actions if isinstance(one, StartGroup)], state)
        if any(_looks_for_memory(one, state) for one in actions):
            # On demand: an engine of another one may live on with its lease, after an end of Ray.
            await self._sweep(self._fleet.answering())

    def _came_up(self, action: GroupAction, ready_before: Collection[GroupKey]) -> bool:
        """True if its group has become ready while the calls for others before it took their time."""
        return action.group not in ready_before and self._fleet.state().is_ready(action.group)

    async def _let_go_on(self, action: RestartGroup | EndGroup) -> None:
        for kept in go_on(self._fleet.state(), action):
            self._keep(kept)
            await self._record(kept)

    def _keep(self, *actions: Action) -> None:
        if not actions:
            return
        pending = self._fleet.pending
        with self._store.together():
            for action in actions:
                self._write(action)
                pending = pending_after(pending, action, self._clocks())
        self._fleet.pending = pending

    def _write(self, action: Action) -> None:
        if isinstance(action, KeepStanding):
            self._store.groups.set_standing(*action.group, action.standing)
        match action:
            case EndAttempt(group=group) | GiveUp(group=group):
                self._store.groups.end_start(group)
            case LadderStep(group=group, nodes=nodes):
                self._store.groups.end_start(group)
                self._store.groups.begin_start(group, begun({}, nodes, self._fleet.nodes.boots))
            case BeginAttempt(group=group, nodes=nodes):
                self._store.groups.begin_start(group, begun({}, nodes, self._fleet.nodes.boots))
            case ForgetGroup(group=group):
                self._store.groups.forget(group)
            case RememberFailure():
                self._store.failures.remember(action.fingerprint, action.reason, action.lasts_s)
            case ForgetFailure():
                self._store.failures.forget(action.fingerprint)

    async def _record(self, action: Action) -> None:
        match action:
            case LadderStep(group=group) | StayUp(group=group):
                await self._event_log.record(*group[:2], name_of(group), "fallback", action.reason)
            case GiveUp(group=group):
                self._metrics.starts.labels(group[0], "failed").inc()
                await self._event_log.record(*group[:2], name_of(group), "failed", action.reason)
            case WaitForNodes(group=group):
                await self._event_log.record(*group[:2], name_of(group), "waits", action.reason)
            case LoadDeployment(deployment=name, generation=generation):
                await self._event_log.record(name, generation, name, "load", action.reason)
            case UnloadDeployment(deployment=name, generation=generation, kind=kind):
                self._metrics.unloads.labels(name, kind).inc()
                await self._event_log.record(name, generation, name, "unload", action.reason)
            case WaitForMemory(deployment=name, generation=generation):
                await self._event_log.record(
                    name, generation, f"{name}/g{generation}", "waits", action.reason
                )

    async def _do(self, action: Action, state: FleetState) -> None:
        match action:
            case RestartGroup(group=group) if launch := await self._launch(state, group):
                self._write(action)
                await self._serve.deploy(launch)
                # Only now: if Serve did not accept the launch, a counted failure is not counted again.
                self._fleet.pending = pending_after(self._fleet.pending, action, self._clocks())
            case RetireGroup(group=group) | EndGroup(group=group):
                if not await self._leave(group):
                    return  # it is decided again in the next round
                if isinstance(action, RetireGroup):  # the end of a given-up one has its event
                    # Serve may still list it as running in the next round, in which its end is decided again.
                    with _on_a_full_disk_too(state):
                        await self._event_log.record_once(*group[:2], name_of(group), "retire", action.reason)
                await self._serve.retire(*group)

    async def _start(self, actions: Sequence[StartGroup], state: FleetState) -> None:
        """Starts groups; those that need a node which does not answer after all others.

        Each start is preceded by a sweep of its nodes: a rank that nobody holds has the memory there. One sweep serves all
        that start together, so that a node that has just fallen silent delays them once.
        """
        launches = [(one, launch) for one in actions if (launch := await self._launch(state, one.group))]
        if not launches:
            return
        answering, swept = self._fleet.answering(), set[str]()
        prompt = [one for one in launches if _nodes_of(one[1]) <= answering]
        late = [one for one in launches if not _nodes_of(one[1]) <= answering]
        for together in filter(None, (prompt, late)):
            nodes = frozenset[str]().union(*(_nodes_of(launch) for _, launch in together))
            swept |= nodes
            await self._sweep(nodes)
            for action, launch in together:
                await self._deploy(action, launch)
        # What nobody holds on other nodes has memory that later starts need.
        await self._sweep(answering - swept)

    async def _deploy(self, action: StartGroup, launch: GroupLaunch) -> None:
        group = action.group
        await self._event_log.record(*group[:2], name_of(group), "deploy", action.reason)
        self._event_log.settle(name_of(group))
        self._keep(action)
        await self._serve.deploy(launch)

    async def _sweep(self, nodes: Collection[str]) -> None:
        if not nodes:
            return
        try:
            async with asyncio.timeout(SWEEP_S):
                await self._nodes.sweep(nodes, self._fleet.sweep_list)
        except TimeoutError:
            log.warning("not swept within %.0f s: %s", SWEEP_S, ", ".join(sorted(nodes)))

    async def _launch(self, state: FleetState, group: GroupKey) -> GroupLaunch | None:
        """The group's launch; None if it has none on the present nodes: it waits, with the reason, and holds up no other."""
        desired = state.generation_of(group)
        if desired is None:
            return None
        try:
            return self._launch_of(
                desired, group, self._store.groups.standings().get(group, NEVER_FAILED).rung
            )
        except SparkfleetError as error:
            reason = " ".join(filter(None, (error.what, error.do)))
            self._keep(WaitForNodes(group=group, reason=reason))
            await self._event_log.record_once(*group[:2], name_of(group), "waits", reason)
            return None


def _looks_for_memory(action: Action, state: FleetState) -> bool:
    """True if a deployment on demand waits for memory."""
    if not isinstance(action, WaitForMemory):
        return False
    return action.deployment not in state.to_run and action.deployment in state.applied


def _nodes_of(launch: GroupLaunch) -> frozenset[str]:
    return frozenset(placement.node for placement in launch.placements)


@contextlib.contextmanager
def _on_a_full_disk_too(state: FleetState) -> Iterator[None]:
    """Lets a `down` go on if the disk of the store is full: it ends everything, and what was not written is not needed."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not state.paused:
            raise
        log.warning("not stored while the fleet is being stopped: %s", error)
