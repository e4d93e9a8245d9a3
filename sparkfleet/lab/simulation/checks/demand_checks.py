"""Checks of deployments on demand after each step of a run: their invariants, with what was seen in the steps before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.checks import demand_invariants, ends_for_others
from sparkfleet.lab.simulation.checks.demand_invariants import DemandRecord
from sparkfleet.lab.simulation.clients import LONGEST_REQUEST_S, SimulatedClients
from sparkfleet.lab.simulation.world import World

ONE_OUTAGE_S = 30.0
"""Times without a controller that works are one if no more seconds are between them."""


class DemandChecks:
    """The invariants over one run.

    Args:
        world: of the run.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._record = DemandRecord()
        self._controller: Controller | None = None
        """The one whose knowledge the record has."""
        self._hogs: tuple[int, ...] = ()
        self._hogged_at = float("-inf")
        """Moment at which something else took or gave back memory last, simulated seconds."""

    def broken(
        self, wanted: Mapping[str, Desired], working_since: float, table: RoutingTable | None
    ) -> Iterator[str]:
        """Violations of what holds for deployments on demand.

        Args:
            wanted: deployments that are to run.
            table: the one that the controller published last; None: there is no controller.
            working_since: since when the controller works without a break, simulated seconds.
        """
        world, record, clients = self._world, self._record, self._world.clients
        if clients is None:
            return
        now = world.time.seconds
        self._note(working_since)
        demanded = {name: one for name, one in wanted.items() if one.spec.on_demand}
        yield from self._ends(wanted, clients)
        yield from demand_invariants.started_without_room(world.refused, demanded, world, self._hogged_at)
        yield from demand_invariants.waits_too_long(
            record,
            demanded,
            clients.use,
            lambda one: demand_invariants.is_possible(world, demanded, one),
            working_since=working_since,
            now=now,
        )
        if table is not None:
            yield from demand_invariants.refuses_for_good(
                record,
                demanded,
                table,
                lambda one: demand_invariants.able_generations(world, one),
                working_since=working_since,
                now=now,
            )
        if (controller := world.controller) is not None:
            yield from demand_invariants.keeps_starts(
                record,
                demanded,
                self._answered_starts(),
                lambda name: name in controller.fleet.pending.loaded or world.is_loaded(demanded[name]),
                working_since=working_since,
                now=now,
            )
        known_since = max(working_since, record.disturbed_at, clients.gateways[-1].began_at)
        yield from demand_invariants.runs_unused(demanded, clients.use, world, known_since)

    def _note(self, working_since: float) -> None:
        """Notes what this step has disturbed, and what serves after it."""
        world, record, now = self._world, self._record, self._world.time.seconds
        if (hogs := tuple(node.hog for node in world.fleet.nodes.values())) != self._hogs:
            self._hogs, self._hogged_at = hogs, now
        fell = [why for _, engine, why in world.fleet.ended if why != "retired"]
        if fell or world.has_acted or not all(node.joined for node in world.fleet.nodes.values()):
            record.disturbed_at = now
        if any(self._answers_for_long(group) for group in world.fleet.engines):
            record.answered_at = now
        if working_since == now or world.controller is None:
            begin, end = record.outage
            record.outage = (begin if now - end < ONE_OUTAGE_S else end, now)
        served = {key[0] for key, engine in world.fleet.engines.items() if engine.ready}
        record.ready_before = record.ready_since
        record.ready_since = {name: record.ready_since.get(name, now) for name in served}
        self._note_starts()

    def _note_starts(self) -> None:
        """Notes how long the starts took that the controller knows of, also of groups that are replaced later."""
        world, record, controller = self._world, self._record, self._world.controller
        before = record.longest_start_s if controller is self._controller else {}
        self._controller, record.longest_start_s = controller, {}
        if controller is None:
            return
        demand = controller.fleet.demand.present()
        longest = {name: before.get(name, 0.0) for name, one in demand.items() if one.ready_since is not None}
        for report in controller.fleet.reports.groups():
            app, name = world.serve.apps.get(report.group), report.deployment
            if (
                name in longest
                and app is not None
                and app.status == "running"
                and report.started_s is not None
            ):
                longest[name] = max(longest[name], report.started_s)
        record.longest_start_s = longest

    def _answered_starts(self) -> dict[GroupKey, Mapping[str, str]]:
        """Unfinished starts of the store without those of which a node reports nothing: it may have gone down by them."""
        nodes = self._world.fleet.nodes
        starts = self._world.store.groups.starts()
        return {
            group: begun
            for group, begun in starts.items()
            if not any(nodes[one].slow_report for one in begun)
        }

    def _answers_for_long(self, group: GroupKey) -> bool:
        app = self._world.serve.apps.get(group)
        if app is None or app.status != "retiring":
            return False
        return self._world.time.seconds - app.retired_at > LONGEST_REQUEST_S

    def _ends(self, wanted: Mapping[str, Desired], clients: SimulatedClients) -> Iterator[str]:
        """Violations by the ends that were decided in this step."""
        world, record = self._world, self._record
        there = dict(world.controller.fleet.pending.unloaded) if world.controller is not None else {}
        ends = {name: why for name, why in there.items() if record.unloaded.get(name) != why}
        record.unloaded = there
        before = record.loaded
        record.loaded = world.controller.fleet.pending.loaded if world.controller is not None else frozenset()
        if ends and world.looked is not None:
            standings = world.store.groups.standings()
            found = ends_for_others.ended_for_others(ends, wanted)
            loads = record.loaded - before
            waits = {
                name: one.waiting_since for name, one in clients.use.items() if one.waiting_since is not None
            }
            yield from ends_for_others.ended_for_nothing(
                found, wanted, standings, world.looked, world, loads=loads, waits=waits
            )
            yield from ends_for_others.ended_in_use(found, clients.use, world.looked, record)
