"""Engines that are started before Ray, so that they load while it comes up: those of groups on the head alone."""

from __future__ import annotations

import contextlib

from sparkfleet.controlplane.api.api_models import UpRequest
from sparkfleet.controlplane.desired import Desired
from sparkfleet.controlplane.policy.after import begun
from sparkfleet.controlplane.policy.pending_starts import lost
from sparkfleet.controlplane.policy.state import SeenNodes
from sparkfleet.controlplane.state.launches import launches_for
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import SparkfleetError
from sparkfleet.group.launch_plan import GroupLaunch, Ports
from sparkfleet.group.rank import available_memory, box_of
from sparkfleet.group.rank_place import spec_here
from sparkfleet.remote import page_cache
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.base import Runtime
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.fleet_paths import FleetPaths
from sparkfleet.runtime.ports import free_port
from sparkfleet.specs.inventory import Inventory


async def start_engines(paths: FleetPaths, request: UpRequest, runtime: Runtime) -> None:
    """Keep what is asked for, end ranks that nobody wants, and start those of groups that lie on this node alone.

    A group is left to the controller where its memory is not there yet (what was swept a moment ago gives it back late,
    and a group's actor waits for it), and where it took this node down when it was started last.
    """
    store = Store(paths.database)
    try:
        for apply in request.apply:
            store.put(apply.spec, apply.plan, apply.who, apply.retry)
        desired = store.desired().values()
        orders = [order for one in desired for order in _orders(store, request.inventory, one)]
        here = request.inventory.head
        ranks = [
            (order, rank) for order in orders for rank, seat in enumerate(order.seats) if seat.node == here
        ]
        await runtime.sweep(frozenset(order.rank_id(paths.label, rank) for order, rank in ranks))
        nodes = SeenNodes.only(NodeReport(name=here, joined=True, boot=this_boot()))
        took_down = lost(store.starts(), nodes)
        for order, _ in ranks:
            group = (order.deployment, order.generation, order.replica)
            if len(order.seats) == 1 and group not in took_down and available_memory() >= order.needs:
                store.begin_start(group, begun({}, (here,), nodes.boots))
                # Where that fails, the group's actor tries again, and says what is wrong.
                with contextlib.suppress(SparkfleetError):
                    await _start(paths, order, runtime)
    finally:
        store.close()


def _orders(store: Store, inventory: Inventory, desired: Desired) -> list[GroupLaunch]:
    """Launches of a deployment's groups that are not given up."""
    standings = store.rungs(desired.name, desired.generation)
    orders = launches_for(inventory, desired, {at: one.rung for at, one in standings.items()})
    given_up = {at for at, one in standings.items() if one.given_up}
    return [order for order in orders if order.replica not in given_up]


async def _start(paths: FleetPaths, order: GroupLaunch, runtime: Runtime) -> None:
    seat = order.seats[0]
    if order.candidate.device == "cuda":
        await page_cache.drop(LocalChannel(seat.node))
    ports, secret = Ports(http=free_port(seat.address)), paths.engine_secret.read_text()
    await runtime.start(spec_here(paths, order, 0, ports, secret, box=await box_of(order)))
