"""Moves the head to another node of the fleet, with its store, secrets and keys; engines are adopted by the new head.

Ray's cluster ends with its head, so that nodes join a new one: a second Ray starts on the new head beside the one that it
has, its controller answers with the store in place, and only then the old Ray ends everywhere. Up to that moment the old
head continues if anything fails. Engines live on meanwhile, as they do if Ray dies.

A head that is lost is replaced in the same steps, with the copy of its store that a node keeps, and without the old head.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from sparkfleet.controlplane.api.api_models import MoveRequest, UpRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress, HeadMove
from sparkfleet.errors import ControlError, SparkfleetError, SpecError
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.lifecycle.move_plan import MovePlan
from sparkfleet.fleet.lifecycle.moved_inventory import gateway_host, inventory_after
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, read_surroundings
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import MOVING_STORE

CHUNK = 1 << 20
HELD_S = 20.0
"""Time for the controller of the new head to see that it may use the store: it looks every half second, or a round later."""

MoveStep = Literal["out", "in", "freeze", "settle", "away", "cancel"]
"""See `node_daemon/head_move.py`."""


class MovedHead(NamedTuple):
    """Outcome of a move."""

    address: HeadAddress | None
    """Of the new head; None if the fleet is down."""
    finds: bool = True
    """False if a lost head will not find this one when it comes back: the port of its Ray was taken."""


async def plan_move(session: Session, new: str) -> MovePlan:
    """Check that the head can be moved to a node. Changes nothing.

    Raises:
        SpecError: the inventory has no such node, or it is the head; or its gateway's address is one of the present head.
        NodeError: a node cannot be reached.
        ControlError: a node belongs to another fleet, or the head has no store.
    """
    inventory, old = session.inventory, session.inventory.head
    inventory.require_nodes([new])
    if new == old:
        raise SpecError(f"{new} is the head already.")
    names = list(inventory.nodes)
    await session.require_head()
    found = await asyncio.gather(*(read_surroundings(inventory, name, session.channels) for name in names))
    around = dict(zip(names, found, strict=True))
    settled = _is_head(around[new]) and around[new].id == around[old].id
    if not around[old].store and not settled:
        raise ControlError(f"{old} has no state of fleet {inventory.fleet}: there is nothing to move.")
    for name in names:
        _require_own(name, around[name], around[old], settled=settled and name == new)
    role = around[old].role
    live = settled or (role is not None and role.live)
    store = f"{around[new].root}/{MOVING_STORE}"
    return MovePlan(old, new, live=live, store=store, settled=settled, host=gateway_host(inventory, new))


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
        await asyncio.shield(cancel_move(session, plan.new, plan.absent))
        as_before = "and groups went on" if plan.lost is None else f"and {plan.new} is an ordinary node"
        undone = f"The move was undone: the head is {plan.old}, as before, {as_before}."
        error.means = undone  # not that nothing is served: that is true of the new head alone
        raise
    except BaseException:
        await asyncio.shield(cancel_move(session, plan.new, plan.absent))
        raise
    await moving.take_over()
    return await moving.finish()


async def cancel_move(session: Session, new: str, absent: Collection[str] = ()) -> None:
    """Undo a move that was interrupted before the new head took over. The old head continues within seconds.

    Args:
        absent: nodes that are left out, because they are lost.
    """
    move = HeadMove(to=new, token="")
    request = MoveRequest(fleet=session.inventory.fleet, step="cancel", move=move)
    # First the new head, so that never both act.
    await session.programs.move_step(new, request)
    await asyncio.gather(
        *(
            session.programs.move_step(name, request)
            for name in session.inventory.nodes
            if name != new and name not in absent
        )
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
        self._after = inventory_after(session.inventory, plan.new, plan.host)
        self._move = HeadMove(to=plan.new, token=secrets.token_hex(8))
        self._nodes = tuple(name for name in session.inventory.nodes if name not in plan.absent)
        self._finds = True

    async def prepare(self) -> None:
        """Copy the store, and start the new head with it; both controllers wait."""
        session, new = self._session, self._plan.new
        await session.programs.pythons(self._on_event)
        copy, given = await self._given()
        self._on_event(FactFound(line=f"The store is copied: {len(copy)} bytes, checked."))
        await session.channels[new].write(self._plan.store, copy)
        up = UpRequest(
            fleet=session.inventory.fleet,
            state_dir=session.access.state_dir(new),
            inventory=self._after,
            beside=True,
        )
        more = {
            **given,
            "up": up if self._plan.live else None,
            "sha256": hashlib.sha256(copy).hexdigest(),
        }
        begun = await session.programs.move_step(new, self._request("in", more))
        if self._plan.live:
            self._finds = begun["at_its_port"] or self._plan.lost is None
            self._on_event(StepRunning(step=FleetStep.STARTING_RAY, subjects=(new,)))
            await session.lifecycle.until_up(begun["outcome"], self._on_event, new)

    async def _given(self) -> tuple[bytes, dict[str, Any]]:
        """The store's copy; and the secrets of the old head, or what runs if it is lost: each node has most secrets, and the
        API has a new one."""
        kept = self._plan.lost.kept if self._plan.lost is not None else None
        if kept is not None and self._plan.lost is not None:
            copy = await self._read(kept.node, kept.path, kept.copy.bytes)
            return copy, {"running": self._plan.lost.running}
        given = await self._session.programs.move_step(self._plan.old, self._request("out"))
        copy = await self._read(self._plan.old, given["path"], given["bytes"])
        return copy, {
            name: given[name] for name in ("ray_token", "api_token", "engine_secret", "engine_tokens")
        }

    async def freeze(self) -> None:
        """Stop the old Ray everywhere, so that none of its processes takes another's end for a failure."""
        session = self._session
        if self._plan.live:
            await asyncio.gather(
                *(session.programs.move_step(name, self._request("freeze")) for name in self._nodes)
            )

    async def take_over(self) -> None:
        """End the old Ray on the new head, whose controller works from now on."""
        await self._session.programs.move_step(self._plan.new, self._request("settle"))

    async def finish(self) -> MovedHead:
        """Join the other nodes to the new head, and set the old store aside."""
        session, old, new = self._session, self._plan.old, self._plan.new
        session.access.inventory = self._after
        if not self._plan.live:
            if old in self._nodes:
                await session.programs.move_step(old, self._request("away"))
            return MovedHead(None)
        prepared = await session.programs.prepare()
        joining = {name: session.programs.joining(name, prepared) for name in self._nodes if name != new}
        if old in joining:
            await session.programs.move_step(old, self._request("away", {"join": joining.pop(old)}))
        await asyncio.gather(*(session.programs.join(name, request) for name, request in joining.items()))
        client = FleetClient(prepared.address, prepared.api_token, reach=session.access.reach)
        await session.lifecycle.until_joined(client, self._on_event, HELD_S, without=self._plan.absent)
        return MovedHead(prepared.address, self._finds)

    def _request(self, step: MoveStep, more: Mapping[str, Any] | None = None) -> MoveRequest:
        fleet = self._session.inventory.fleet
        return MoveRequest(fleet=fleet, step=step, move=self._move).model_copy(update=dict(more or {}))

    async def _read(self, node: str, path: str, size: int) -> bytes:
        """A file of a node, whole."""
        channel = self._session.channels[node]
        pieces = [await channel.read(path, offset=at, limit=CHUNK) for at in range(0, size, CHUNK)]
        return b"".join(pieces)
