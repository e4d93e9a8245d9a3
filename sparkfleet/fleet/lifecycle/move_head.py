"""Moves the head to another node of the fleet, with its store, secrets and keys; engines are adopted by the new head.

Ray's cluster ends with its head, so that nodes join a new one: a second Ray starts on the new head beside the one that it
has, its controller answers with the store in place, and only then the old Ray ends everywhere. Up to that moment the old
head continues if anything fails. Engines live on meanwhile, as they do if Ray dies.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparkfleet.controlplane.api.api_models import MoveRequest, UpRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress, HeadMove
from sparkfleet.errors import ControlError, SparkfleetError, SpecError
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, read_surroundings
from sparkfleet.fleet.session import Session
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import MOVING_STORE

CHUNK = 1 << 20
HELD_S = 20.0
"""Time for the controller of the new head to see that it may use the store: it looks every half second, or a round later."""

MoveStep = Literal["out", "in", "freeze", "settle", "away", "cancel"]
"""See `node_daemon/head_move.py`."""


class MovePlan(NamedTuple):
    """A move of the head that is possible."""

    old: str
    new: str
    live: bool
    """True if the fleet is up."""
    store: str
    """Path for the copy of the store on the new head."""
    settled: bool
    """True if an earlier command was interrupted after the new head took over: only the rest is done."""


class MovedHead(NamedTuple):
    """Outcome of a move."""

    address: HeadAddress | None
    """Of the new head; None if the fleet is down."""


async def plan_move(session: Session, new: str) -> MovePlan:
    """Check that the head can be moved to a node. Changes nothing.

    Raises:
        SpecError: the inventory has no such node, or it is the head.
        NodeError: a node cannot be reached.
        ControlError: a node belongs to another fleet, or the head has no store.
    """
    inventory, old = session.inventory, session.inventory.head
    inventory.require_nodes([new])
    if new == old:
        raise SpecError(f"{new} is the head already.")
    names = list(inventory.nodes)
    found = await asyncio.gather(*(read_surroundings(inventory, name, session.channels) for name in names))
    around = dict(zip(names, found, strict=True))
    settled = _is_head(around[new]) and around[new].id == around[old].id
    if not around[old].store and not settled:
        raise ControlError(f"{old} has no state of fleet {inventory.fleet}: there is nothing to move.")
    for name in names:
        _require_own(name, around[name], around[old], settled=settled and name == new)
    role = around[old].role
    live = settled or (role is not None and role.live)
    return MovePlan(old, new, live=live, store=f"{around[new].root}/{MOVING_STORE}", settled=settled)


def _is_head(here: NodeSurroundings) -> bool:
    return here.role is not None and here.role.verb == "up"


def _require_own(name: str, here: NodeSurroundings, old: NodeSurroundings, *, settled: bool) -> None:
    role = here.role
    if role is None or settled or here is old or here.id == old.id or not role.live:
        return
    raise ControlError(
        f"{name} belongs to another fleet, of head {role.head or role.ray}.",
        means="The head was not moved.",
        do="Take that fleet down first, or leave the node out of the inventory.",
    )


async def move_head(session: Session, plan: MovePlan, on_event: OnEvent = ignored) -> MovedHead:
    """Move the head. If anything fails before the new head answers, the old one continues.

    Args:
        session: the fleet; its inventory names the new head afterwards.

    Raises:
        NodeError: a node cannot be reached.
        ControlError: a step was refused.
    """
    moving = _Moving(session, plan, on_event)
    if plan.settled:
        return await moving.finish()
    try:
        await moving.prepare()
        await moving.freeze()
    except SparkfleetError as error:
        await asyncio.shield(cancel_move(session, plan.new))
        undone = f"The move was undone: the head is {plan.old}, as before, and groups went on."
        error.means = undone  # not that nothing is served: that is true of the new head alone
        raise
    except BaseException:
        await asyncio.shield(cancel_move(session, plan.new))
        raise
    await moving.take_over()
    return await moving.finish()


async def cancel_move(session: Session, new: str) -> None:
    """Undo a move that was interrupted before the new head took over. The old head continues within seconds."""
    move = HeadMove(to=new, token="")
    request = MoveRequest(fleet=session.inventory.fleet, step="cancel", move=move)
    # First the new head, so that never both act.
    await session.programs.move_step(new, request)
    await asyncio.gather(
        *(session.programs.move_step(name, request) for name in session.inventory.nodes if name != new)
    )


async def undo_move(session: Session, new: str, on_event: OnEvent = ignored) -> None:
    """Undo a move that was interrupted, and wait until the old head's controller works again, if the fleet is up.

    Args:
        new: the node that would have become the head.

    Raises:
        SpecError: the inventory has no such node.
        NodeError: a node cannot be reached.
        ControlError: the controller does not work, or a node did not join again.
    """
    session.inventory.require_nodes([new])
    await cancel_move(session, new)
    client = await session.find_controller()
    if client is not None:
        await session.lifecycle.until_joined(client, on_event, HELD_S)


class _Moving:
    def __init__(self, session: Session, plan: MovePlan, on_event: OnEvent) -> None:
        self._session, self._plan, self._on_event = session, plan, on_event
        self._after = session.inventory.model_copy(update={"head": plan.new})
        self._move = HeadMove(to=plan.new, token=secrets.token_hex(8))
        self._secrets: Mapping[str, str] = {}

    async def prepare(self) -> None:
        """Copy the store, and start the new head with it; both controllers wait."""
        session, old, new = self._session, self._plan.old, self._plan.new
        await session.programs.pythons(self._on_event)
        given = await session.programs.move_step(old, self._request("out"))
        copy = await self._read(given["path"], given["bytes"])
        self._on_event(FactFound(line=f"The store is copied: {len(copy)} bytes, checked."))
        self._secrets = {
            name: given[name] for name in ("ray_token", "api_token", "engine_secret", "engine_tokens")
        }
        await session.channels[new].write(self._plan.store, copy)
        up = UpRequest(
            fleet=session.inventory.fleet,
            state_dir=session.access.state_dir(new),
            inventory=self._after,
            beside=True,
        )
        more = {
            **self._secrets,
            "up": up if self._plan.live else None,
            "sha256": hashlib.sha256(copy).hexdigest(),
        }
        begun = await session.programs.move_step(new, self._request("in", more))
        if self._plan.live:
            self._on_event(StepRunning(step=FleetStep.STARTING_RAY, subjects=(new,)))
            await session.lifecycle.until_up(begun["outcome"], self._on_event, new)

    async def freeze(self) -> None:
        """Stop the old Ray everywhere, so that none of its processes takes another's end for a failure."""
        session = self._session
        if self._plan.live:
            await asyncio.gather(
                *(
                    session.programs.move_step(name, self._request("freeze"))
                    for name in session.inventory.nodes
                )
            )

    async def take_over(self) -> None:
        """End the old Ray on the new head, whose controller works from now on."""
        await self._session.programs.move_step(self._plan.new, self._request("settle"))

    async def finish(self) -> MovedHead:
        """Join the other nodes to the new head, and set the old store aside."""
        session, old, new = self._session, self._plan.old, self._plan.new
        session.access.inventory = self._after
        if not self._plan.live:
            await session.programs.move_step(old, self._request("away"))
            return MovedHead(None)
        prepared = await session.programs.prepare()
        joining = {
            name: session.programs.joining(name, prepared) for name in self._after.nodes if name != new
        }
        await session.programs.move_step(old, self._request("away", {"join": joining.pop(old)}))
        await asyncio.gather(*(session.programs.join(name, request) for name, request in joining.items()))
        client = FleetClient(prepared.address, prepared.api_token, reach=session.access.reach)
        await session.lifecycle.until_joined(client, self._on_event, HELD_S)
        return MovedHead(prepared.address)

    def _request(self, step: MoveStep, more: Mapping[str, Any] | None = None) -> MoveRequest:
        fleet = self._session.inventory.fleet
        return MoveRequest(fleet=fleet, step=step, move=self._move).model_copy(update=dict(more or {}))

    async def _read(self, path: str, size: int) -> bytes:
        """A file of the old head, whole."""
        channel = self._session.channels[self._plan.old]
        pieces = [await channel.read(path, offset=at, limit=CHUNK) for at in range(0, size, CHUNK)]
        return b"".join(pieces)


def head_named(text: str, old: str, new: str) -> str | None:
    """An inventory's text with another head; None if its `head:` is not a line of its own."""
    line = re.compile(rf"^head:[ \t]*{re.escape(old)}([ \t]*)(?=#|\r?$)", flags=re.MULTILINE)
    changed, count = line.subn(lambda found: f"head: {new}{'  ' if found[1] else ''}", text)
    return changed if count == 1 else None


def name_head(file: Path, old: str, new: str) -> bool:
    """Write the new head into an inventory file, and nothing else; False if a person has to do it."""
    try:
        file = file.resolve()  # a link stays one
        text = head_named(file.read_bytes().decode(), old, new)
        if text is not None:
            write_atomically(file, text.encode(), mode=file.stat().st_mode & 0o777)
    except (OSError, UnicodeDecodeError):
        return False
    return text is not None
