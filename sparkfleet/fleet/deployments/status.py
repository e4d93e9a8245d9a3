"""Reads the status of a fleet, describes one deployment with its events, and deletes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.api.client_errors import Held
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.errors import (
    ControlError,
    SparkfleetError,
    UnreachableError,
    UnreadableStateError,
    WrongFleetError,
)
from sparkfleet.fleet.controller_finder import NoControllerError
from sparkfleet.fleet.deployments.watch import PASSING, WAIT_S, until_gone
from sparkfleet.fleet.events import OnEvent, TroubleFound, ignored
from sparkfleet.fleet.known_names import remember_names
from sparkfleet.fleet.nodes.node_set import other_nodes
from sparkfleet.fleet.session import Session
from sparkfleet.specs.fields import quote
from sparkfleet.specs.inventory import Inventory

RECENT = 500
"""Events that are read with the status: those of the last hour, and more, but for a fleet that fails without end."""


class FleetCondition(StrEnum):
    """Condition of a fleet as a whole. Only `up` and `down` are known; of the others engines may run."""

    UP = "up"
    DOWN = "down"
    HELD = "held"
    """The controller answers, and changes nothing until its store can be used."""
    NO_CONTROLLER = "no controller"
    """Ray runs on the head without a controller that answers."""
    UNREADABLE = "unreadable"
    UNREACHABLE = "unreachable"
    WRONG_FLEET = "wrong fleet"


class FleetOverview(NamedTuple):
    """The whole fleet, up or down."""

    condition: FleetCondition
    status: FleetStatus
    """If the fleet is not up: its nodes, none of them joined, and no deployments: they are not known."""
    trouble: SparkfleetError | None = None
    """The reason for any condition but `up` and `down`."""
    recent: tuple[Event, ...] = ()
    """Its last events, oldest first; () if it is not up."""

    @property
    def up(self) -> bool:
        """True if the controller answered with the status."""
        return self.condition is FleetCondition.UP


class DescribedDeployment(NamedTuple):
    """One deployment with its events."""

    status: DeploymentStatus
    events: tuple[Event, ...]
    """Oldest first, without those of a start's progress."""
    bench: tuple[BenchResult, ...] = ()
    """Speeds of the fleet's setups that were measured with `sparkfleet bench`."""


async def fleet_state(session: Session) -> FleetOverview:
    """The nodes and deployments of the fleet. A fleet that is down, or whose state is not known, is no error.

    Raises:
        ControlError: its controller is of an incompatible version of sparkfleet.
    """
    unknown = _unknown(session.inventory)
    try:
        client = await session.find_controller()
        if client is None:
            return FleetOverview(FleetCondition.DOWN, unknown)
        async with client:
            status = await client.fleet()
            recent = await client.all_events(after=max(0, status.last_event - RECENT))
            remember_names(status.fleet, deployments=[one.name for one in status.deployments])
            if (error := other_nodes(session.inventory, status)) is not None:
                warnings = (*status.warnings, " ".join(str(error).split()))
                status = status.model_copy(update={"warnings": warnings})
            return FleetOverview(FleetCondition.UP, status, recent=tuple(recent))
    except (UnreachableError, UnreadableStateError, WrongFleetError) as error:
        return FleetOverview(_condition(error), unknown, error)


def _condition(error: SparkfleetError) -> FleetCondition:
    kinds: tuple[tuple[type[SparkfleetError], FleetCondition], ...] = (
        (Held, FleetCondition.HELD),
        (NoControllerError, FleetCondition.NO_CONTROLLER),
        (UnreachableError, FleetCondition.UNREACHABLE),
        (WrongFleetError, FleetCondition.WRONG_FLEET),
    )
    return next((found for kind, found in kinds if isinstance(error, kind)), FleetCondition.UNREADABLE)


def _unknown(inventory: Inventory) -> FleetStatus:
    """Status of a fleet whose controller does not answer. Its deployments are unknown: they are on the head's disk."""
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
        fleet = await client.fleet()
        status = await find_in(client, fleet, name)
        events = await client.all_events(name)
    own = tuple(event for event in events if event.kind not in PASSING)
    return DescribedDeployment(status, own, fleet.bench)


async def read_events(
    session: Session, name: str | None, last: int | None, since: float = 0.0, *, yet_to_come: bool = False
) -> tuple[tuple[Event, ...], int]:
    """The last events of a name or of the whole fleet, oldest first, and the id after which new ones follow.

    Those of a start's progress are left out.

    Args:
        name: a deployment, or what the lines of events begin with: a group, a node, a key, a gateway; None: all.
        last: their number; None: all.
        since: only those of this moment or later, Unix seconds.
        yet_to_come: a name that nothing has yet is no error: it is reported as a trouble, as it may be mistyped.

    Raises:
        ControlError: the fleet is down, or it has neither an event nor a deployment or node of this name.
    """
    async with await session.controller() as client:
        status = await client.fleet()
        newest = status.last_event
        kept = await client.all_events(_deployment_in(name, status))
    own = [event for event in kept if _is_of(event, name)]
    if name is not None and not (own or _is_known(name, status)):
        error = _no_events(name, status, kept)
        if not yet_to_come:
            raise error
        session.report(TroubleFound(line=f"{error.what} Its events are printed once it has some. {error.do}"))
    found = [event for event in own if event.kind not in PASSING and event.at >= since]
    return tuple(found if last is None else found[-last:] if last else ()), newest


async def follow_events(
    session: Session, name: str | None, after: int, on_event: Callable[[Event], None]
) -> None:
    """Send events with an id above `after` until it is cancelled. Raises ControlError if the fleet is down."""
    async with await session.controller() as client:
        deployment = _deployment_in(name, await client.fleet())
        while True:
            for event in await client.events(after, deployment, wait_s=WAIT_S):
                after = event.id
                if event.kind not in PASSING and _is_of(event, name):
                    on_event(event)


def _deployment_in(name: str | None, status: FleetStatus) -> str | None:
    """The deployment whose events the controller is to send for a name; None: all, of which those of the name are taken."""
    deployment = (name or "").partition("/")[0]
    return deployment if status.named(deployment) else None


def _is_of(event: Event, name: str | None) -> bool:
    return name is None or name in {event.deployment, event.subject}


def _is_known(name: str, status: FleetStatus) -> bool:
    return status.named(name) is not None or any(node.name == name for node in status.nodes)


def _no_events(name: str, status: FleetStatus, kept: Iterable[Event]) -> ControlError:
    names = {one.name for one in status.deployments} | {node.name for node in status.nodes}
    subjects = {event.subject or event.deployment for event in kept}
    same = sorted(known for known in names | subjects if known.lower() == name.lower())
    return ControlError(
        f"There is no event of {quote(name)}, and no deployment or node has this name.",
        do=f"`sparkfleet events {same[0]}` prints those of {same[0]}."
        if same
        else f"Names: {', '.join(sorted(names))}; groups, keys and gateways have them, too. Without a name all are printed.",
    )


async def delete_deployment(
    session: Session, name: str, confirm: Callable[[], None], on_event: OnEvent = ignored
) -> None:
    """Delete a deployment, and wait until all its groups have ended.

    Args:
        confirm: called after the deployment was found; it raises to change nothing.

    Raises:
        ControlError: the fleet is down, or has none of that name.
    """
    async with await session.controller() as client:
        await find_now(client, name)
        confirm()
        from sparkfleet.fleet.node_programs import who  # a slow import, which `status` does without

        status = await client.fleet()
        await client.delete(name, who())
        remember_names(status.fleet, deployments=[d.name for d in status.deployments if d.name != name])
        await until_gone(client, name, status.last_event, on_event)


async def find_now(client: FleetClient, name: str) -> DeploymentStatus:
    """A deployment by its name, as it is now. Raises ControlError if there is none."""
    return await find_in(client, await client.fleet(), name)


async def find_in(client: FleetClient, status: FleetStatus, name: str) -> DeploymentStatus:
    """A deployment of a status. Raises ControlError if there is none: one that was deleted is named as such."""
    if status.named(name) is None:
        require_not_paused(status)
    if status.named(name) is None and await client.history(name):
        raise ControlError(
            f"{name} was deleted.",
            do=f"`sparkfleet rollback {name}` brings it back, `sparkfleet history {name}` lists its generations.",
        )
    return find(status, name)


def require_not_paused(status: FleetStatus) -> None:
    """Raises ControlError while the fleet is taken down, also after a `down` that did not end."""
    if status.paused:
        raise ControlError(
            f"Fleet {status.fleet} is being taken down, or a `sparkfleet down` did not end.",
            means="Nothing that was applied runs, and nothing was changed.",
            do="`sparkfleet up` starts all of it again, `sparkfleet down` stops the rest.",
        )


def find(status: FleetStatus, name: str) -> DeploymentStatus:
    """A deployment by its name. Raises ControlError with the known names if there is none."""
    if (found := status.named(name)) is None:
        raise no_deployment(name, [one.name for one in status.deployments])
    return found


def no_deployment(name: str, known: Sequence[str]) -> ControlError:
    """The error for a name that no deployment has."""
    return ControlError(
        f"There is no deployment {quote(name)}.",
        do=f"Deployments: {', '.join(known)}."
        if known
        else "None is known: `sparkfleet apply FILE` starts one.",
    )
