"""Reboots a node of a running fleet, and waits until it and what it served are back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import ControlError, NodeError, SparkfleetError
from sparkfleet.fleet.events import OnEvent, TroubleFound
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.unreachable import Unreachable
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

BACK_S = 1800.0
"""Longest wait: two minutes for a Spark, ten to load its memory, and as much again."""
LOOK_S = 2.0
REBOOT = ("systemctl", "reboot")
COMMAND_S = 20.0

Served = Mapping[GroupKey, float]
"""Ready groups with a rank on a node, and the moment since which each of them is ready (Unix seconds)."""


class Survival(Value):
    """A node that was rebooted, and its return."""

    node_s: float | None = None
    """Seconds until it was part of the fleet again; None: it was not in time."""
    served_s: float | None = None
    """Seconds until everything that it had served was ready again; None: it was not in time."""
    missing: tuple[str, ...] = ()
    """Deployments that did not come back."""


def served_by(status: FleetStatus, node: str) -> dict[GroupKey, float]:
    """See `Served`."""
    return {
        group.group: group.since
        for group in status.groups
        if group.phase is GroupPhase.READY and any(rank.node == node for rank in group.ranks)
    }


def boot_of(status: FleetStatus, node: str) -> str:
    """Boot id of a node that is part of the fleet; "" for any other, or if it was not read."""
    return next((one.boot for one in status.nodes if one.name == node and one.joined), "")


def not_back(status: FleetStatus, served: Served, node: str) -> tuple[str, ...]:
    """Deployments of which fewer groups are ready on the node than before, those that have been ready all the time left out.

    A group that comes back has another name if its deployment was changed meanwhile, so groups are counted.
    """
    back: dict[str, int] = {}
    for group, since in served_by(status, node).items():
        if served.get(group) != since:
            back[group[0]] = back.get(group[0], 0) + 1
    wanted: dict[str, int] = {}
    for name, *_ in served:
        wanted[name] = wanted.get(name, 0) + 1
    return tuple(name for name, count in wanted.items() if back.get(name, 0) < count)


async def survive_reboot(session: Session, node: str, on_event: OnEvent) -> Survival:
    """Reboots a node, or waits until its owner does if sparkfleet may not, and then for all that it served.

    Raises:
        ControlError: this command runs on it, the fleet is down, or the node is not part of it.
    """
    if session.inventory.nodes[node].is_local:
        raise ControlError(
            f"{node} is the machine on which this command runs: its reboot would end it.",
            do="Run `sparkfleet selftest` on another machine, or reboot it and look at `sparkfleet status`.",
        )
    before = await _status(session)
    boot = boot_of(before, node)
    if not boot:
        raise ControlError(f"{node} is not part of the fleet.", do="sparkfleet status")
    if not await reboot(session.channels[node]):
        words = f"On {node}, type: sudo {' '.join(REBOOT)}   (from here it needs a password)"
        on_event(TroubleFound(line=words))
    return await _back(session.inventory, node, boot, served_by(before, node))


async def reboot(channel: Channel) -> bool:
    """Reboots a node; False if sudo needs a password for it.

    `sudo -n -l` would not find out: it also lists what needs a password if another line of sudoers has NOPASSWD.
    """
    try:
        return (await channel.run(("sudo", "-n", *REBOOT), timeout_s=COMMAND_S)).exit_code != 1
    except Unreachable:
        return True  # it goes at once, and cuts the connection
    except NodeError:
        return False  # no sudo


async def _back(inventory: Inventory, node: str, boot: str, served: Served) -> Survival:
    began = time.monotonic()
    survival = Survival(missing=tuple(dict.fromkeys(name for name, *_ in served)))
    while time.monotonic() - began < BACK_S:
        await asyncio.sleep(LOOK_S)
        try:
            async with Session(inventory) as anew:  # without the connections of before
                status = await _status(anew)
        except SparkfleetError:  # the node is the head, or the controller begins
            continue
        taken = time.monotonic() - began
        if boot_of(status, node) in ("", boot):
            continue
        if survival.node_s is None:
            survival = survival.model_copy(update={"node_s": taken})
        survival = survival.model_copy(update={"missing": not_back(status, served, node)})
        if not survival.missing:
            return survival.model_copy(update={"served_s": taken})
    return survival


async def _status(session: Session) -> FleetStatus:
    async with await session.controller() as client:
        return await client.fleet()
