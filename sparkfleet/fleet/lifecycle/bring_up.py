"""The use-cases `up` and `down`: what is there already, the gateway's address, the steps with their expected times."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import NamedTuple

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.controller_finder import NoControllerError
from sparkfleet.fleet.events import FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.gateway import change_gateway, gateway_change
from sparkfleet.fleet.lifecycle.ending_groups import EndingGroups
from sparkfleet.fleet.node_starts import TakenDown
from sparkfleet.fleet.nodes.node_set import without_their_nodes
from sparkfleet.fleet.planning.step_times import (
    FLEET,
    StepTimer,
    expected_times,
    load_step_times,
    save_step_times,
)
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.node import ReadGpu
from sparkfleet.remote import page_cache
from sparkfleet.runtime.files.fleet_paths import FleetPaths

DOWN_LOOK_S = 0.5


class BroughtUp(NamedTuple):
    """A fleet that is up."""

    client: FleetClient
    """Of its controller, not entered."""
    changed: bool
    """False if every node was up already."""
    left_by_a_reboot: tuple[str, ...]
    """Nodes without systemd and cron, which stay down after a reboot."""
    ended_by_a_logout: tuple[str, ...] = ()
    """Nodes whose systemd ends what runs there with the user's last login."""
    without_nodes: str = ""
    """Deployments that do not start for lack of their nodes, in words; "" for none."""


async def bring_up(session: Session, on_event: OnEvent = ignored, wheels: Path | None = None) -> BroughtUp:
    """Bring up every node of the fleet, and its deployments. Does nothing if the whole fleet is up and lacks no file.

    Args:
        wheels: directory from which nodes without internet install.

    Raises:
        NodeError: a node cannot be reached, or sparkfleet cannot be installed on it.
        ControlError: the fleet did not come up, a node did not join it, or it was started with other nodes.
    """
    client = await _controller(session)
    joined = await session.lifecycle.joined(client) if client is not None else {}
    if client is not None and all(map(joined.get, session.inventory.nodes)):
        changed = await _with_its_gateway(session, client)
        return BroughtUp(changed or client, changed=changed is not None, left_by_a_reboot=())
    if client is not None:
        client.require_same_api()
    file = FleetPaths.default(session.inventory.fleet).step_times
    with StepTimer(on_event, expected_times(load_step_times(file), FLEET)) as timer:
        client = await session.lifecycle.bring_up((), timer, wheels, joined)
    save_step_times(file, FLEET, timer.times)
    client = await _with_its_gateway(session, client) or client
    lacking = await _without_their_nodes(session, client)
    await session.endpoint.until_serving(client)
    return BroughtUp(
        client,
        changed=True,
        left_by_a_reboot=session.lifecycle.left_by_a_reboot,
        ended_by_a_logout=session.lifecycle.ended_by_a_logout,
        without_nodes=lacking,
    )


async def _with_its_gateway(session: Session, client: FleetClient) -> FleetClient | None:
    """Gives the gateway the inventory's address. A client with the new one; None if it has it already."""
    if "gateway" not in session.inventory.model_fields_set:
        return None
    async with client.again() as asking:
        status = await asking.fleet()
    if not gateway_change(session.inventory, status):
        return None
    await change_gateway(session)
    return await session.controller()


async def _without_their_nodes(session: Session, client: FleetClient) -> str:
    try:
        async with client.again() as asking:
            return without_their_nodes(session.inventory, await asking.fleet())
    except ControlError:
        return ""  # the fleet is up all the same, and `status` has it


async def _controller(session: Session) -> FleetClient | None:
    """A client of the controller, which is made if Ray runs without one; None if the fleet is down."""
    try:
        return await session.find_controller()
    except NoControllerError:
        await session.programs.make_controller()
        return await session.find_controller()


async def take_down(session: Session, on_event: OnEvent = ignored) -> TakenDown:
    """Stop everything on every node. The deployments are kept for the next `up`.

    Raises:
        ControlError: something could not be stopped.
    """
    work = asyncio.create_task(session.lifecycle.take_down())
    ending = EndingGroups(session)
    watch = asyncio.create_task(ending.watch())
    try:
        while not (await asyncio.wait({work}, timeout=DOWN_LOOK_S))[0]:
            on_event(StepRunning(step=FleetStep.STOPPING, detail=ending.words))
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)  # their channels are about to be closed
    return work.result()


class PageCacheDenied(NamedTuple):
    """Nodes with a GPU on which sparkfleet may not drop the page cache."""

    nodes: tuple[str, ...]
    commands: tuple[str, ...]
    """One per user that sparkfleet logs in as; to be run once on each of the nodes."""


async def page_cache_denied(session: Session) -> PageCacheDenied:
    """Find nodes with a GPU on which sparkfleet may not drop the page cache, which takes memory from engines."""
    answers = await asyncio.gather(*(_denied(session, name) for name in session.inventory.nodes))
    nodes = tuple(name for name in answers if name)
    users = dict.fromkeys(session.inventory.nodes[name].user or getpass.getuser() for name in nodes)
    return PageCacheDenied(nodes, tuple(page_cache.how_to_permit(user) for user in users))


async def _denied(session: Session, name: str) -> str:
    channel = session.channels[name]
    try:
        has_gpu = (await channel.run(ReadGpu.argv, timeout_s=20)).exit_code == 0
    except NodeError:
        return ""  # no driver: no engine on the GPU needs the memory
    return name if has_gpu and not await page_cache.may_drop(channel) else ""
