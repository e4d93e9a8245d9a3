"""Control of the gateways: their routing table, their address, and the wait until they have both."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime

from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.demand.on_demand_use import on_demand_uses
from sparkfleet.controlplane.policy.gone_nodes import rung_without_lost
from sparkfleet.controlplane.policy.pending_starts import RAY_GONE_S
from sparkfleet.controlplane.policy.start_choice import loadable, startable, to_bring_back
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, nodes_of
from sparkfleet.controlplane.state.api_keys import CONFIRM_S
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.fleet_snapshot import FleetSnapshot
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import OnDemandStatus
from sparkfleet.controlplane.views.routing_publisher import RoutingPublisher
from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.keys import is_expired, may_infer
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, RoutingTable
from sparkfleet.group.group_name import GroupKey
from sparkfleet.planner.report.carry_over import RunningGroup

MISSED_S = 20.0
"""Seconds without a report of a gateway after which it is missed: one that is killed or new reports before that."""


class GatewayControl:
    """Keeps the gateways equal to the observed fleet."""

    def __init__(
        self,
        fleet: ObservedFleet,
        watch: NodeWatch,
        publisher: RoutingPublisher,
        event_log: EventLog,
        address: HeadAddress,
    ) -> None:
        self.address = address
        """Of the head, with the endpoint at which the gateways listen."""
        self._moving = asyncio.Lock()
        """A second try of a client waits for the outcome of its first one."""
        self._fleet = fleet
        self._watch = watch
        self._publisher = publisher
        self._event_log = event_log
        self._published_from: tuple[object, ...] = ()
        """Inputs of the table that the gateways have."""

    @property
    def is_current(self) -> bool:
        """False while the gateways keep the table of the controller before."""
        return bool(self._published_from)

    async def table(self, known: int, wait_s: float = 10.0, replica: str = "") -> RoutingTable:
        """The gateway's table; waits for one other than `known`, at most `wait_s`. Version 0: none was published yet."""
        return await self._publisher.table(known, wait_s, replica)

    def published(self) -> dict[str, GroupEntry]:
        """Groups in the table that the gateways have, by application."""
        return self._publisher.published()

    async def publish(self, without: GroupKey | None = None) -> None:
        """Publishes the table; costs nothing while all that it is made of is as it was.

        The gateways keep the table of the controller before until this one knows what runs.
        """
        inputs = self.inputs(without)
        if not self._fleet.is_listed or inputs == self._published_from:
            return
        keys = self._fleet.store.keys.all()
        current = await self._publisher.publish(self.snapshot(), keys, without, self.address.listening)
        self._published_from = inputs if current else ()

    async def confirmed(self) -> frozenset[str]:
        """Publishes the table and waits until the gateways have it, at most `CONFIRM_S`. Returns those that have not."""
        await self.publish()
        gateways = self._fleet.reports.gateways
        return await self._publisher.held_by(lambda: [report.replica for report in gateways()], CONFIRM_S)

    async def leave(self, group: GroupKey) -> bool:
        """Takes a group out of the table before it ends, and keeps it out for the rest of the round.

        Returns False, and changes nothing, if it may be in the table of the former controller, which the gateways keep.
        """
        await self.publish(without=group)
        if not self.is_current and self._may_serve(group):
            return False
        self._fleet.retire(group)
        await self.publish()  # a report of another group may have published it again meanwhile
        return True

    def _may_serve(self, group: GroupKey) -> bool:
        """True unless its start is under way or failed: an engine serves on while its actor is replaced."""
        status = next((app.status for app in self._fleet.apps if app.group == group), "")
        return status == "running" or (
            status == "starting" and group not in self._fleet.store.groups.starts()
        )

    def warnings(self) -> tuple[str, ...]:
        """Trouble of a fleet without a gateway, in words: Ray Serve starts one again and again if it cannot listen."""
        silent_s = self._fleet.reports.gateway_silent_s
        # Without Ray's GCS a gateway that serves may not reach this process.
        if silent_s < MISSED_S or self._watch.overdue():
            return ()
        at = self.address
        return (
            f"No gateway has reported for {silent_s // 10 * 10:.0f} s, so requests to {at.endpoint} fail. If"
            f" another program listens on port {at.gateway_port} of the head (`ss -ltnp` there lists it), end it, or give"
            " the endpoint another port: `gateway: {port: …}` in the inventory, then `sparkfleet up`.",
        )

    async def listen(self, address: HeadAddress, who: str) -> frozenset[str]:
        """Lets the gateways listen at the endpoint of this address. Streams on the old one go on.

        Returns the gateways that have not changed yet. Raises ControlError if one cannot listen there. After any error the
        address is the one before: the caller takes its files back, too.
        """
        async with self._moving:
            if address == self.address:
                return await self.confirmed()
            return await self._move(address, who)

    async def _move(self, address: HeadAddress, who: str) -> frozenset[str]:
        before, self.address = self.address, address
        try:
            late = await self.confirmed()
            troubles = [report for report in self._fleet.reports.gateways() if report.trouble]
            if troubles:
                means = f"The gateway listens at {troubles[0].url}, as before."
                raise ControlError(troubles[0].trouble, means=means)
            words = ", ".join((address.endpoint, *map(address.endpoint_at, address.entries)))
            await self._event_log.record("", 0, "", "gateway", f"the endpoint is {words} now, by {who}")
        except Exception:
            self.address = before
            await self.confirmed()
            raise
        return late

    def inputs(self, without: GroupKey | None = None) -> tuple[object, ...]:
        """Everything that the gateways' table depends on; the store by the number of its writes."""
        fleet = self._fleet
        return (
            without,
            fleet.paused,
            self.address.listening,
            self._publisher.version,
            fleet.store.writes,
            [(app.group, app.status) for app in fleet.apps],
            fleet.reports.outline(),
            (fleet.pending.waiting, fleet.pending.loaded, fleet.pending.unloaded, fleet.pending.recorded),
            fleet.demand.outline(),
            tuple(self._watch.lost()),
            fleet.forecast.ready_at(),
        )

    def snapshot(self, running: Mapping[str, tuple[RunningGroup, ...]] | None = None) -> FleetSnapshot:
        """Snapshot of the fleet for the table, and, with the groups that run, for a status.

        The table has no durations: each gateway would get another one every second.
        """
        fleet, lost = self._fleet, self._watch.lost()
        state = fleet.state()
        demand: dict[str, OnDemandStatus] = {}
        if running is None:
            lost = dict.fromkeys(lost, 0.0)
        else:
            demand = on_demand_uses(state, fleet.clocks(), fleet.forecast.last_start_s)
        return FleetSnapshot(
            state.applied,
            fleet.apps,
            state.reports,
            fleet.reports.fresh(),
            failed={name for name, one in state.applied.items() if state.has_given_up(one)},
            startable=dict(_startable(state)),
            published=self._publisher.published(),
            passed={name: _passed(state, one) for name, one in state.applied.items()},
            running=running or {},
            last_served=state.last_served,
            returning={served.name: served.generation for served, _ in to_bring_back(state)},
            stranded={name: _stranded(state, one) for name, one in state.applied.items()},
            lost={name: _lost(state, one, lost) for name, one in state.applied.items()},
            keyless=_keyless(state, fleet.store.keys.all(), fleet.clocks().unix),
            ready_at=fleet.forecast.ready_at(),
            drained={one.group for one in fleet.store.drains.groups()},
            unloaded=dict(_unloaded(state)),
            demand=demand,
            stopped=state.desired if state.paused else {},
        )


def _unloaded(state: FleetState) -> Iterator[tuple[str, str]]:
    """Deployments on demand that are not to run now, with what their start depends on, in words."""
    for name, one in state.applied.items():
        if name in state.to_run:
            continue
        demand, ended = state.demand.get(name), state.pending.unloaded.get(name)
        if demand is not None and demand.waiting_since is not None:
            yield name, state.pending.recorded.get(f"{name}/g{one.generation}", "it is about to start")
        else:
            starts = "its next request starts it"
            choice = next(iter(loadable(state, one)), None)
            if choice is not None and choice.generation is not one:
                served = f"generation {choice.generation.generation}, which served before"
                starts = f"its next request starts {served}: {_did_not_start(one)}"
            yield name, "; ".join(filter(None, (ended, starts)))


def _startable(state: FleetState) -> Iterator[tuple[str, int]]:
    """Deployments on demand with a group that is given up, each with the generation that serves requests all the same."""
    for name, one in state.applied.items():
        generation = startable(state, one) if one.spec.on_demand and state.has_given_up(one) else None
        if generation is not None:
            yield name, generation


def _did_not_start(desired: Desired) -> str:
    return (
        f"generation {desired.generation} did not start; `sparkfleet describe {desired.name}` shows the reason,"
        " `sparkfleet apply FILE --retry` tries it again"
    )


def _passed(state: FleetState, desired: Desired) -> tuple[tuple[str, ...], ...]:
    """Reasons of each group of a deployment for leaving the rungs above its current one."""
    return tuple(state.standing(group).passed for group in desired.groups)


def _stranded(state: FleetState, desired: Desired) -> str:
    """Nodes that a deployment's group waits for and that may never return, in words; "" if there are none."""
    return next(
        (state.pending.waiting[group] for group in desired.groups if group in state.pending.waiting), ""
    )


def _keyless(state: FleetState, keys: Collection[KeyEntry], now: float) -> dict[str, str]:
    """Deployments that list keys of which none is left that may use them, in words. `now`: Unix seconds."""
    usable = {key.name for key in keys if may_infer(key, now)}
    expired = {key.name: key for key in keys if is_expired(key, now)}
    found = {}
    for name, one in state.applied.items():
        if not (listed := one.spec.keys) or not usable.isdisjoint(listed):
            continue
        old = next(filter(None, map(expired.get, listed)), None)
        found[name] = f"nobody may use it: its file lists {', '.join(listed)} under `keys:`, and " + (
            f"no such key exists; `sparkfleet keys create {listed[0]}` makes one"
            if old is None
            else f"none of them is valid: {_expiry(old)}"
        )
    return found


def _expiry(key: KeyEntry) -> str:
    assert key.limits.expires is not None
    date = datetime.fromtimestamp(key.limits.expires, UTC).strftime("%Y-%m-%d")
    return (
        f"{key.name} expired on {date}; `sparkfleet keys limit {key.name} --expires 90d` makes it valid again"
    )


def _lost(state: FleetState, desired: Desired, lost: Mapping[str, float]) -> str:
    """Nodes of a deployment's groups that do not answer, in words; "" if all do. Of several the longest time is named, and
    0 seconds are not: a switch without power takes all of them away at once."""
    used = {node for group in desired.groups for node in nodes_of(desired, group, state.standing(group))}
    away = {node: seconds for node, seconds in sorted(lost.items()) if node in used}
    if not away:
        return ""
    longest = max(away.values())
    verb = "does" if len(away) == 1 else "do"
    since = f" (for {longest:.0f} s)" if longest else ""
    return f"{', '.join(away)} {verb} not answer{since}{_goes_on(state, desired, away.keys())}"


def _goes_on(state: FleetState, desired: Desired, away: Collection[str]) -> str:
    """The start of a group that has lost nodes, in words; "" if all serve, or the others are given up."""
    for group in desired.groups:
        standing = state.standing(group)
        if state.is_ready(group) or standing.given_up:
            continue
        if set(away).isdisjoint(nodes_of(desired, group, standing)):
            continue
        at = rung_without_lost(state, desired, group, away)
        if at is None:
            return "; its group starts when that is back"
        others = "+".join(desired.plan_of(group).ladder[at].candidate.shape.nodes)
        lasts = (RAY_GONE_S + GONE_S) / 60
        return f"; if that lasts {lasts:.0f} min, its group starts on {others} (rung {at + 1})"
    return ""
