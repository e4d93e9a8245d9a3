"""Loads a deployment that is on demand before its first request comes, and unloads one before its memory is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.deployments.status import find_now
from sparkfleet.fleet.deployments.watch import STEPS, WAIT_S, starting_step
from sparkfleet.fleet.events import FleetEvent, FleetStep, OnEvent, StepRunning
from sparkfleet.fleet.node_programs import who
from sparkfleet.fleet.planning.step_times import (
    StepTimer,
    all_ready,
    expected_times,
    load_step_times,
    save_step_times,
    started_by,
)
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupPhase
from sparkfleet.runtime.files.fleet_paths import FleetPaths


async def load_deployment(session: Session, name: str, on_event: OnEvent) -> tuple[DeploymentStatus, bool]:
    """Loads a deployment, and waits until it is ready or has failed. Returns its last status, and True if it was ready.

    Cancelling this ends its wait for memory; a start that has begun goes on.

    Raises:
        ControlError: the fleet is down, or has no deployment of that name that is on demand and may start.
    """
    async with await session.controller() as client:
        found = await find_now(client, name)
        await client.load(name, who())  # also if it is ready: that counts as its last use
        if serves(found):
            return found, True
        repeat = lambda: client.load(name, who())  # noqa: E731
        return await follow_start(session, client, name, on_event, repeat), False


def serves(status: DeploymentStatus) -> bool:
    """True if requests for a deployment on demand are answered, maybe by the generation before one that did not start."""
    older = status.instead is not None and any(one.phase is GroupPhase.READY for one in status.groups)
    return status.state == "ready" or (status.state == "failed" and older)


async def follow_start(
    session: Session,
    client: FleetClient,
    name: str,
    on_event: OnEvent,
    repeat: Callable[[], Awaitable[None]] | None = None,
) -> DeploymentStatus:
    """Sends the steps of a start on demand, and its events, until the deployment is ready or has failed.

    Args:
        client: of the controller, entered.
        repeat: awaited in each round in which it is not loaded.

    Raises:
        ControlError: it was deleted.
    """
    file = FleetPaths.default(session.inventory.fleet).step_times
    status = await find_now(client, name)
    subject = started_by((status.plan,)) if status.plan is not None else ""
    after = (await client.fleet()).last_event
    with StepTimer(on_event, expected_times(load_step_times(file), subject)) as timer:
        while status.state not in ("ready", "failed") and not serves(status):
            timer(starting_step([status]))
            if status.state == "unloaded" and repeat is not None:
                await repeat()
            for event in await client.events(after, name, wait_s=WAIT_S):
                after = event.id
                if event.kind not in STEPS:
                    timer(FleetEvent(event=event))
            status = await find_now(client, name)
    if all_ready({name: status}) and FleetStep.STARTING_ENGINE in timer.times:
        # Without the wait for memory, which is no part of a start.
        timer.times.pop(FleetStep.WAITING, None)
        save_step_times(file, subject, timer.times)
    return status


async def unload_deployment(session: Session, name: str, on_event: OnEvent) -> tuple[bool, bool]:
    """Unloads a deployment, and waits until its engines have ended.

    Returns True if it was loaded, and True if it starts again, because a request waits for it.

    Raises:
        ControlError: the fleet is down, or has no deployment of that name that is on demand.
    """
    async with await session.controller() as client:
        await find_now(client, name)
        after = (await client.fleet()).last_event
        if not await client.unload(name, who()):
            return False, False
        while True:
            on_event(StepRunning(step=FleetStep.STOPPING, subjects=(name,)))
            for event in await client.events(after, name, wait_s=WAIT_S):
                after = event.id
                if event.kind == "load":
                    return True, True
                if event.kind not in STEPS:
                    on_event(FleetEvent(event=event))
            found = (await client.fleet()).named(name)
            if found is None or (found.state in ("unloaded", "failed") and not found.groups):
                return True, False
