"""Tables that a simulated controller publishes, against the groups that serve."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.status import app_name
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.serve import SimulatedServe


async def table_of(controller: Controller) -> RoutingTable:
    """The table that it published last; version 0: none."""
    return await controller.gateways.table(known=-1, wait_s=0.0)


def left_out(table: RoutingTable, controller: Controller, serve: SimulatedServe, now: float) -> Iterator[str]:
    """Wanted groups that serve and have reported it, and are not ready in a table.

    Args:
        table: has just been published: what has arrived since is not in it.
        controller: the one that published it.
        serve: all groups that exist. One that the controller has started since it listed them has not served before.
        now: simulated seconds.
    """
    named = {group.app for model in table.models.values() for group in model.groups if group.ready}
    fleet = controller.fleet
    leaving = {app.group for app in fleet.apps if app.status == "retiring"}
    leaving |= {one.group for one in fleet.store.drains.groups()}
    listed = {app.group for app in fleet.apps} or serve.apps.keys() - fleet.pending.deployed
    wanted = {group for one in fleet.applied().values() for group in one.groups}
    for report in fleet.reports.fresh():
        serves = report.phase is GroupPhase.READY and report.group in listed
        app = app_name(*report.group)
        if serves and report.group in wanted - leaving and app not in named:
            yield f"{now:.1f} s: {app} serves, and a new table does not name it as ready"
