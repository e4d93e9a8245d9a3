"""Deployments of a fleet as they are: its status, one of them with what happened to it, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.controlplane.state.store import Event
from sparkfleet.errors import ControlError
from sparkfleet.fleet.events import OnEvent, ignored
from sparkfleet.fleet.session import Session, who
from sparkfleet.fleet.watch import PASSING, until_gone
from sparkfleet.specs.inventory import Inventory


class FleetOverview(NamedTuple):
    """The whole fleet, up or down."""

    up: bool
    status: FleetStatus
    """Of a fleet that is down: its nodes, none of them joined, and nothing deployed."""


class DescribedDeployment(NamedTuple):
    """One deployment, and what happened to it."""

    status: DeploymentStatus
    events: tuple[Event, ...]
    """Oldest first, without those that only said how far a start was."""


async def fleet_state(session: Session) -> FleetOverview:
    """The fleet at a glance. That it is down is an answer, and no error.

    Raises:
        NodeError: its head cannot be reached.
        ControlError: its controller is of another sparkfleet's kind.
    """
    client = await session.find_controller()
    if client is None:
        return FleetOverview(up=False, status=_down(session.inventory))
    async with client:
        return FleetOverview(up=True, status=await client.fleet())


def _down(inventory: Inventory) -> FleetStatus:
    """The fields of a fleet that is up, of one of which nothing is known: what it serves is on its head's disk."""
    return FleetStatus(
        fleet=inventory.fleet,
        sparkfleet="",
        endpoint="",
        gateways=(),
        nodes=tuple(NodeReport(name=name, joined=False) for name in inventory.nodes),
        deployments=(),
        last_event=0,
    )


async def describe_deployment(session: Session, name: str) -> DescribedDeployment:
    """Everything about one deployment. Raises ControlError if the fleet is down, or has none of that name."""
    async with await session.controller() as client:
        status = find(await client.fleet(), name)
        events = await client.all_events(name)
    return DescribedDeployment(status, tuple(event for event in events if event.kind not in PASSING))


async def delete_deployment(
    session: Session, name: str, confirm: Callable[[], None], on_event: OnEvent = ignored
) -> None:
    """No longer serve a deployment, and wait until nothing of it is left.

    Args:
        session: the fleet.
        name: of the deployment.
        confirm: called once it is known to exist; it raises to change nothing.
        on_event: takes what happens.

    Raises:
        ControlError: the fleet is down, or has none of that name.
    """
    async with await session.controller() as client:
        status = await client.fleet()
        find(status, name)
        confirm()
        await client.delete(name, who())
        await until_gone(client, name, status.last_event, on_event)


def find(status: FleetStatus, name: str) -> DeploymentStatus:
    """A deployment by its name. Raises ControlError, naming those there are."""
    for deployment in status.deployments:
        if deployment.name == name:
            return deployment
    names = ", ".join(d.name for d in status.deployments) or "none"
    raise ControlError(f"There is no deployment {name!r}.", do=f"There are: {names}.")
