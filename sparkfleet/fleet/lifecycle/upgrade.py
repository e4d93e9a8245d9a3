"""Lets a running fleet run the release of this process, without ending its engines.

All nodes change at once: Ray refuses a cluster of mixed versions, and the controller and the groups' actors exchange values
of one release. Whatever can fail is tried on every node before anything ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from sparkfleet.controlplane.api.api_models import UpgradeStep
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import ControlError, NodeError, SparkfleetError
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.lifecycle.former_release import answers_of, run_former
from sparkfleet.fleet.nodes.node_set import other_nodes
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import GroupPhase, GroupReport

ADOPT_S = 90.0
"""Time limit for the groups that were ready to be ready again: adoption takes seconds, a new start minutes."""
LOOK_S = 0.5
END_S = 30.0
"""Time limit of the end of the former release after Ctrl-C; a node that has not answered by then is taken back, too."""


class UpgradePlan(NamedTuple):
    """An upgrade that can be carried out."""

    former: str
    """Version that the fleet runs."""
    pythons: Mapping[str, str | None]
    """Interpreter that each node runs from."""
    ready: frozenset[GroupKey]
    """Groups that are ready, without those on demand."""
    loaded: tuple[str, ...] = ()
    """Deployments on demand that are loaded: a restart of Ray unloads them, and their engines end with their leases."""


class Upgraded(NamedTuple):
    """A fleet after its upgrade."""

    former: str
    version: str
    """Version that runs now."""
    changed: bool
    """False if every node ran this release already."""
    seconds: float = 0.0
    """From the end of the former release to the groups that were ready before; 0 without a change."""
    kept: tuple[str, ...] = ()
    """Groups whose engines went on."""
    others: tuple[str, ...] = ()
    """Groups that were ready before and whose engines are not: they start again, as `status` shows."""


async def plan_upgrade(session: Session) -> UpgradePlan:
    """Find what the fleet runs. Changes nothing.

    Raises:
        ControlError: the fleet is down, or was started with other nodes than the inventory's.
        NodeError: a node cannot be reached: an upgrade changes all of them.
    """
    client = await session.find_controller()
    if client is None:
        raise ControlError(
            f"Fleet {session.inventory.fleet} is down: there is nothing to upgrade.",
            means="The next start installs the release of this command on every node.",
            do="`sparkfleet up` starts it.",
        )
    status = await _status(client)
    if (error := other_nodes(session.inventory, status)) is not None:
        raise error  # it would start the controller again with these nodes, under engines that go on
    pythons = await session.programs.pythons_in_use()
    if status is None:
        return UpgradePlan(client.version, pythons, frozenset())
    loaded = tuple(
        one.name for one in status.deployments if one.on_demand and one.is_loaded and one.state != "unloaded"
    )
    ready = frozenset(group for group in _ready(status) if group[0] not in loaded)
    return UpgradePlan(client.version, pythons, ready, loaded)


async def upgrade(
    session: Session,
    plan: UpgradePlan,
    on_event: OnEvent = ignored,
    wheels: Path | None = None,
    *,
    force: bool = False,
) -> Upgraded:
    """Install this release on every node, try it there, and change to it. Changes back if it does not start.

    Args:
        wheels: directory from which nodes without internet install.
        force: start every node again even if it runs from this release's environment: its files were replaced.

    Raises:
        NodeError: a node cannot be reached, or this release cannot be installed on it; nothing was changed.
        ControlError: this release cannot run on a node, another upgrade is under way or has ended since the plan, and
            nothing was changed; or it did not start, and the fleet runs the former one again.
    """
    pythons = await session.programs.pythons(on_event, wheels)
    token = secrets.token_hex(16)
    version, ray = await _try_release(session, token)
    if not force and pythons == plan.pythons and plan.former == version:
        return Upgraded(plan.former, version, changed=False)
    plan = await _planned_again(session, plan)
    on_event(
        FactFound(line=f"sparkfleet {version} with Ray {ray} was tried on {', '.join(pythons)}: it can run.")
    )
    on_event(StepRunning(step=FleetStep.STOPPING, detail=f"sparkfleet {plan.former}; engines go on"))
    began = time.monotonic()
    await _freeze(session, token)
    try:
        await _end(session, token)
        client = await session.lifecycle.bring_up((), on_event, wheels)
    except SparkfleetError as error:
        failed = ControlError(f"sparkfleet {version} did not start: {error.what}", do=error.do)
        raise await run_former(session, token, plan.former, failed, on_event) from error
    await _settle(session, token, on_event)
    after = await _until_ready(client, plan.ready, on_event)
    seconds = time.monotonic() - began
    await session.endpoint.until_serving(client)
    kept = {one.group: one.name for one in after if one.group in plan.ready and one.adopted}
    return Upgraded(
        plan.former,
        version,
        changed=True,
        seconds=seconds,
        kept=tuple(sorted(kept.values())),
        others=tuple(sorted(map(name_of, plan.ready - kept.keys()))),
    )


async def _planned_again(session: Session, shown: UpgradePlan) -> UpgradePlan:
    """The plan as it is by now: its confirmation may have been open for hours. Raises ControlError for another release."""
    now = await plan_upgrade(session)
    if (now.former, now.pythons) != (shown.former, shown.pythons):
        raise ControlError(
            f"Another upgrade has ended since this one was planned: the fleet runs sparkfleet {now.former} now.",
            means="Nothing was changed.",
            do="`sparkfleet upgrade` plans again.",
        )
    return now


async def _try_release(session: Session, token: str) -> tuple[str, str]:
    """Versions of this release and of its Ray, tried on every node. Raises ControlError if one cannot run it."""
    answers = await _on_all(session, "try", token)
    versions = {node: (str(one["version"]), str(one["ray"])) for node, one in answers.items()}
    if len({*versions.values()}) > 1:
        found = ", ".join(f"{node} has {version} with Ray {ray}" for node, (version, ray) in versions.items())
        raise ControlError(
            f"The nodes' environments differ: {found}.",
            means="Nothing was changed: Ray and sparkfleet require the same version on all nodes.",
            do="Install the same on every node, or leave `environment:` out of the inventory: sparkfleet installs itself.",
        )
    return next(iter(versions.values()))


async def _freeze(session: Session, token: str) -> None:
    """Claims the fleet, and stops Ray's processes on every node. If that fails on one, all go on as they were."""
    programs, head = session.programs, session.inventory.head
    others = [node for node in session.inventory.nodes if node != head]
    try:
        await programs.upgrade_step(head, "begin", token)
        begun = (programs.upgrade_step(node, "begin", token, granted=True) for node in others)
        _raise_first(await asyncio.gather(*begun, return_exceptions=True))
        await _on_all(session, "freeze", token)
    except BaseException:
        await asyncio.shield(answers_of(session, "thaw", token))
        raise


async def _end(session: Session, token: str) -> None:
    """Ends the former release on every node. Interrupted, it lets every node run it again: none stays stopped or ended."""
    ending = asyncio.ensure_future(_on_all(session, "end", token))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.shield(_take_back(session, token, ending))
        raise


async def _take_back(session: Session, token: str, ending: asyncio.Future[dict[str, dict[str, Any]]]) -> None:
    # After its end, not during it: the end would find what the way back has started.
    _, late = await asyncio.wait([ending], timeout=END_S)
    for one in late:
        one.cancel()
    await asyncio.gather(ending, answers_of(session, "back", token), return_exceptions=True)


async def _settle(session: Session, token: str, on_event: OnEvent) -> None:
    """Removes what the way back would have needed. The new release runs already, also if a node is lost just now."""
    for node, one in (await answers_of(session, "settle", token)).items():
        if isinstance(one, SparkfleetError):
            on_event(
                FactFound(line=f"{node} keeps the former release's role until the next upgrade: {one.what}")
            )
        elif isinstance(one, BaseException):
            raise one


async def _on_all(session: Session, step: UpgradeStep, token: str) -> dict[str, dict[str, Any]]:
    """A step on all nodes concurrently; the answers by node. Raises the first error when all have ended."""
    answers = await answers_of(session, step, token)
    _raise_first(answers.values())
    return {node: one for node, one in answers.items() if not isinstance(one, BaseException)}


def _raise_first(answers: Iterable[object]) -> None:
    for one in answers:
        if isinstance(one, BaseException):
            raise one


async def _status(client: FleetClient) -> FleetStatus | None:
    """The controller's status; None if it cannot be read: another release may have other fields."""
    try:
        async with client.again() as asking:
            return await asking.fleet()
    except (ControlError, NodeError, ValidationError, ValueError):
        return None


async def _until_ready(
    client: FleetClient, expected: frozenset[GroupKey], on_event: OnEvent
) -> tuple[GroupReport, ...]:
    """The ready groups, as soon as all expected ones are among them, or after the time limit."""
    deadline = time.monotonic() + ADOPT_S
    while True:
        status = await _status(client)
        found = () if status is None else tuple(_ready(status).values())
        missing = expected - {one.group for one in found}
        if not missing or time.monotonic() > deadline:
            return found
        names = tuple(sorted({name for name, _, _ in missing}))
        on_event(StepRunning(step=FleetStep.WAITING, subjects=names))
        await asyncio.sleep(LOOK_S)


def _ready(status: FleetStatus) -> dict[GroupKey, GroupReport]:
    return {group.group: group for group in status.groups if group.phase is GroupPhase.READY}
