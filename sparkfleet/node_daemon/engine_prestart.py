"""Starts the engines of groups on the head alone before Ray, so that they load while Ray starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterator

from sparkfleet.controlplane.api.api_models import UpRequest
from sparkfleet.controlplane.policy.pending_starts import lost
from sparkfleet.controlplane.policy.state import NEVER_FAILED, SeenNodes
from sparkfleet.controlplane.policy.state_after import begun
from sparkfleet.controlplane.sealing import sealed
from sparkfleet.controlplane.state.desired import Desired, Generation
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.controlplane.state.newer_generations import OvertakenError
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
from sparkfleet.errors import SparkfleetError
from sparkfleet.group.group_launch import ALONE, GroupLaunch
from sparkfleet.group.group_name import name_of
from sparkfleet.group.ranks.rank_node import (
    available_memory,
    container_of,
    drop_page_cache,
    prepare_cache,
    spec_here,
)
from sparkfleet.group.ranks.rank_spec import Ports
from sparkfleet.runtime.base import RankId, Runtime
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.ports import free_port
from sparkfleet.runtime.processes import labelled, variable
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.inventory import Inventory

log = logging.getLogger(__name__)


async def start_engines(paths: FleetPaths, request: UpRequest, runtime: Runtime) -> None:
    """Stores the applied deployments, ends ranks that are no longer desired, and starts those of groups on this node alone.

    A group is left to the controller if its memory is not available yet (that of a rank that was just ended becomes
    available late, and a group's actor waits for it), if its last start took this node down, if this node is drained, or if
    its deployment is on demand. If the store cannot be used, or not be written, or another process works with it, nothing
    more is stored, ended or started: the controller reports why.
    """
    lock = StoreLock(paths.root)
    try:
        lock.take()
        store = open_store(paths, request.inventory.fleet, await asyncio.to_thread(_running, paths.label))
    except StoreError as error:
        log.error("no engine is started before Ray: %s", error)
        lock.release()
        return
    try:
        await _start_all(paths, request, runtime, store)
    except sqlite3.Error as error:  # a full disk: Ray and the controller start all the same
        log.error("no further engine is started before Ray: %s", error)
    finally:
        store.close()
        lock.release()


async def _start_all(paths: FleetPaths, request: UpRequest, runtime: Runtime, store: Store) -> None:
    sealer = EnvSealer(paths.read_engine_secret().encode())
    for apply in request.apply:
        spec, plan = sealed(apply.spec, apply.plan, sealer)
        # One that another apply has overtaken is refused by the controller, when the command applies it there.
        with contextlib.suppress(OvertakenError):
            store.deployments.put(spec, plan, apply.who, apply.retry, base=apply.base)
    desired = store.deployments.desired().values()
    launches = [launch for one in desired for launch in _launches(store, request.inventory, one)]
    here = request.inventory.head
    ranks = [
        (launch, rank)
        for launch in launches
        for rank, placement in enumerate(launch.placements)
        if placement.node == here
    ]
    await runtime.sweep(frozenset(launch.rank_id(paths.label, rank) for launch, rank in ranks))
    nodes = SeenNodes.only(NodeReport(name=here, joined=True, boot=this_boot()))
    took_down = lost(store.groups.starts(), nodes)
    is_drained = here in {one.node for one in store.drains.nodes()}
    waits = {one.name for one in desired if one.spec.on_demand}
    for launch, _ in () if is_drained else ranks:
        if launch.deployment in waits:
            continue
        group = (launch.deployment, launch.generation, launch.replica)
        if len(launch.placements) == 1 and group not in took_down and available_memory() >= launch.needs:
            store.groups.begin_start(group, begun({}, (here,), nodes.boots))
            # If that fails, the group's actor tries again, and reports the reason.
            with contextlib.suppress(SparkfleetError):
                await _start(paths, launch, runtime)


def _running(label: str) -> frozenset[Generation]:
    """Generations with a rank on this node."""
    ranks = (variable(one.pid, RANK_LABEL) for one in labelled({FLEET_LABEL: label}))
    ids = (RankId.parse(rank) for rank in ranks if rank)
    return frozenset((one.deployment, one.generation) for one in ids if one is not None)


def _launches(store: Store, inventory: Inventory, desired: Desired) -> Iterator[GroupLaunch]:
    """Launches of a deployment's groups that are not given up, and that have one on the present nodes."""
    standings = store.groups.standings()
    for group in desired.groups:
        standing = standings.get(group, NEVER_FAILED)
        if not standing.given_up:
            try:
                yield launch_for(inventory, desired, group, standing.rung)
            except SparkfleetError as error:  # the controller reports it
                log.error("%s is not started before Ray: %s", name_of(group), error)


async def _start(paths: FleetPaths, launch: GroupLaunch, runtime: Runtime) -> None:
    placement = launch.placements[0]
    if launch.candidate.device == "cuda":
        await drop_page_cache(placement.node, launch.candidate.model)
    ports = Ports(http=free_port(placement.address), inner=free_port(ALONE))
    prepare_cache(paths, launch)
    secret, tokens = paths.read_engine_secret(), paths.read_token_secrets()
    spec = spec_here(paths, launch, 0, ports, secret, tokens=tokens, container=await container_of(launch))
    await runtime.start(spec)
