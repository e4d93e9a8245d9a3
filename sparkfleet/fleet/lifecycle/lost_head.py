"""Finds the means to replace a head that is lost: a node that becomes the head, and the newest copy of the store.

A head counts as lost if neither this machine nor a node that can be reached reaches it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from sparkfleet.controlplane.api.api_models import MoveRequest
from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.state.store_copies import StoreCopy
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.lifecycle.move_plan import CheckedCopy, LostHead, MovePlan
from sparkfleet.fleet.lifecycle.moved_inventory import gateway_host
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, read_surroundings, surroundings_of
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import MOVING_STORE


async def plan_lost(session: Session, new: str) -> MovePlan:
    """Check that a node can replace the head, which is lost. Changes nothing on any node.

    Raises:
        SpecError: the inventory has no such node, or it is the head; or its gateway's address is one of the lost head.
        NodeError: the node cannot be reached.
        ControlError: the head can be reached, from here or from a node; the node is not part of the fleet that runs; or no
            node keeps a copy of its store.
    """
    inventory, old = session.inventory, session.inventory.head
    inventory.require_nodes([new])
    if new == old:
        raise SpecError(
            f"{new} is the lost head itself.",
            do="Name another node: it becomes the head, with the copy of the store.",
        )
    around = await surroundings_of(inventory, session.channels)
    _require_lost(old, new, around)
    here = around.get(new) or await read_surroundings(inventory, new, session.channels)
    reached = tuple(name for name in inventory.nodes if name in around and name != old)
    absent = tuple(name for name in inventory.nodes if name not in reached)
    store, host = f"{here.root}/{MOVING_STORE}", gateway_host(inventory, new)
    if here.role is not None and here.role.verb == "up":
        lost = LostHead(kept=None, running=(), absent=absent)
        return MovePlan(old, new, live=True, store=store, settled=True, host=host, lost=lost)
    if here.role is None and (of_fleet := [name for name in reached if around[name].role is not None]):
        raise ControlError(
            f"{new} is in the inventory, and not in the fleet that runs on {', '.join(of_fleet)}.",
            means="Nothing was changed.",
            do=f"`sparkfleet move-head {of_fleet[0]} --lost`; `sparkfleet up` then takes {new} in.",
        )
    await session.programs.pythons()
    answers = await asyncio.gather(*(_kept(session, name, new) for name in reached))
    found = [
        CheckedCopy(name, answer["path"], StoreCopy.model_validate_json(json.dumps(answer["copy"])))
        for name, answer in zip(reached, answers, strict=True)
        if answer["copy"] is not None
    ]
    kept = max(
        (one for one in found if not one.copy.trouble),
        key=lambda one: (one.copy.changes, one.copy.at, one.node == new),
        default=None,
    )
    if kept is None:
        raise _without_copy(old, new, found)
    running = {(str(name), int(number)) for answer in answers for name, number in answer["running"]}
    lost, live = LostHead(kept, tuple(sorted(running)), absent), here.role is not None
    return MovePlan(old, new, live=live, store=store, settled=False, host=host, lost=lost)


def _require_lost(old: str, new: str, around: Mapping[str, NodeSurroundings]) -> None:
    """Raise ControlError if the head is reached, with its state, or if a node reaches its Ray."""
    there = around.get(old)
    if there is not None and (there.store or there.role is not None):
        raise ControlError(
            f"{old} is not lost: it can be reached, and has the state of the fleet.",
            means="Nothing was changed.",
            do=f"`sparkfleet move-head {new}` moves the head; `sparkfleet up` starts it again.",
        )
    for name, here in around.items():
        role = here.role
        if role is None or role.verb != "join" or not role.live:
            continue
        if role.head in ("", old):
            raise ControlError(
                f"{old} is not lost: {name} reaches its Ray, though this machine does not reach {old}.",
                means="Nothing was changed: two heads would start the same groups.",
                do=f"Repair the way to {old} (`sparkfleet doctor`), or switch it off first.",
            )
        if role.head != new:
            raise ControlError(
                f"{name} belongs to head {role.head}, which is running.",
                means="Nothing was changed.",
                do=f"Set `head: {role.head}` in the inventory.",
            )


async def _kept(session: Session, name: str, new: str) -> dict[str, Any]:
    request = MoveRequest(fleet=session.inventory.fleet, step="kept", move=HeadMove(to=new, token=""))
    return await session.programs.move_step(name, request)


def _without_copy(old: str, new: str, found: list[CheckedCopy]) -> ControlError:
    spoilt = [f"that of {one.node} cannot be used: {one.copy.trouble}" for one in found]
    return ControlError(
        f"No node keeps a copy of the store of {old}{': ' + '; '.join(spoilt) if spoilt else ''}.",
        means="Nothing was changed: deployments and keys would be missing.",
        do=f"With a copy of `sparkfleet backup`, or with nothing but the deployments' files: set `head: {new}`, remove {old}"
        " from the inventory, and `sparkfleet up`; docs/runbook.md has the steps.",
    )
