"""Moves the head to another node of the fleet, with its store, secrets and keys; engines are adopted by the new head.

Ray's cluster ends with its head, so that nodes join a new one: a second Ray starts on the new head beside the one that it
has, its controller answers with the store in place, and only then the old Ray ends everywhere. Up to that moment the old
head continues if anything fails. Engines live on meanwhile, as they do if Ray dies.

A head that is lost is replaced in the same steps, with the copy of its store that a node keeps, and without the old head.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkfleet.controlplane.api.api_models import MoveRequest, MoveStep, UpRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress, HeadMove
from sparkfleet.errors import ControlError, SparkfleetError, SpecError
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.lifecycle.move_plan import MovePlan
from sparkfleet.fleet.lifecycle.moved_inventory import gateway_host, inventory_after
from sparkfleet.fleet.lifecycle.undo_move import HELD_S, cancel_move, unreached_lines
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, read_surroundings
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import MOVING_STORE

CHUNK = 1 << 20
END_S = 30.0
"""Time limit for the end of steps that are under way at Ctrl-C: what is undone meanwhile, they would do again."""


class MovedHead(NamedTuple):
    """Outcome of a move."""

    address: HeadAddress | None
    """Of the new head; None if the fleet is down."""
    finds: bool = True
    """False if a head that was lost, now or earlier, will not find this one when it comes back: its port was taken here."""


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
        await moving.take_over()
        return await moving.finish()
    try:
        await moving.prepare()
        await moving.freeze()
        await moving.take_over()
    except SparkfleetError as error:
        await asyncio.shield(moving.undo_after(error))
        raise
    except BaseException:
        with contextlib.suppress(
            SparkfleetError
        ):  # its caller has gone: `status` shows a move that is still under way
            await asyncio.shield(moving.undo())
        raise
    return await moving.finish()


class _Moving:
    def __init__(self, session: Session, plan: MovePlan, on_event: OnEvent) -> None:
        self._session, self._plan, self._on_event = session, plan, on_event
        self._after = inventory_after(session.inventory, plan.new, plan.host)
        self._move = HeadMove(to=plan.new, token=secrets.token_hex(8))
        self._nodes = tuple(name for name in session.inventory.nodes if name not in plan.absent)
        self._finds = True
        self._touched: set[str] = set()
        self._settling = False

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
        begun = await self._step(new, "in", more)
        if self._plan.live:
            self._finds = begun["at_its_port"]
            self._on_event(StepRunning(step=FleetStep.STARTING_RAY, subjects=(new,)))
            await session.lifecycle.until_up(begun["outcome"], self._on_event, new)

    async def _given(self) -> tuple[bytes, dict[str, Any]]:
        """The store's copy; and the secrets of the old head, or what runs if it is lost: each node has most secrets, and the
        API has a new one."""
        kept = self._plan.lost.kept if self._plan.lost is not None else None
        if kept is not None and self._plan.lost is not None:
            copy = await self._read(kept.node, kept.path, kept.copy.bytes)
            return copy, {"running": self._plan.lost.running}
        given = await self._step(self._plan.old, "out")
        copy = await self._read(self._plan.old, given["path"], given["bytes"])
        return copy, {
            name: given[name] for name in ("ray_token", "api_token", "engine_secret", "engine_tokens", "term")
        }

    async def freeze(self) -> None:
        """Stop the old Ray everywhere, so that none of its processes takes another's end for a failure.

        First on the two heads, which refuse that if another move has taken this one's place.
        """
        heads = [name for name in self._nodes if name in (self._plan.old, self._plan.new)]
        others = [name for name in self._nodes if name not in heads]
        giving: list[tuple[str, MoveStep]] = [(self._plan.old, "give")] if self._plan.old in heads else []
        if self._plan.live:
            await self._steps((name, "freeze") for name in heads)
            giving += [(name, "freeze") for name in others]
        await self._steps(giving)

    async def take_over(self) -> None:
        """End the old Ray on the new head, whose controller works from now on."""
        self._settling = True
        await self._step(self._plan.new, "settle")

    async def undo(self) -> tuple[str, ...]:
        """Undo what was begun. See `cancel_move`."""
        if not self._touched:
            return ()
        unsettled = not self._settling
        return await cancel_move(self._session, self._move, self._touched, unsettled=unsettled)

    async def undo_after(self, error: SparkfleetError) -> None:
        """Undo what was begun, and put the outcome into the error that ended the move."""
        plan = self._plan
        if not self._touched:
            error.means = "The move has not begun."
            return
        try:
            unreached = await self.undo()
        except SparkfleetError as second:
            error.means = f"The move could not be undone: {second.what}"
            error.do = (
                second.do
                or f"`sparkfleet move-head --cancel {plan.new}` undoes it once {plan.old} is reached."
            )
            return
        as_before = "and groups went on" if plan.lost is None else f"and {plan.new} is an ordinary node"
        undone = f"The move was undone: the head is {plan.old}, as before, {as_before}."
        # Not that nothing is served: that is true of the new head alone.
        error.means = " ".join((undone, *unreached_lines(plan.new, unreached)))

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

    async def _step(self, name: str, step: MoveStep, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        (answer,) = await self._steps([(name, step)], more)
        return answer

    async def _steps(
        self, steps: Iterable[tuple[str, MoveStep]], more: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Steps on several nodes concurrently; raises the first error when all have ended, also after Ctrl-C: what is undone
        while a step is under way, it would do again."""
        steps = list(steps)
        self._touched |= {name for name, _ in steps}
        calls = (self._session.programs.move_step(name, self._request(step, more)) for name, step in steps)
        work = asyncio.gather(*calls, return_exceptions=True)
        try:
            answers = await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work], timeout=END_S)
            raise
        for one in answers:
            if isinstance(one, BaseException):
                raise one
        return [one for one in answers if not isinstance(one, BaseException)]

    def _request(self, step: MoveStep, more: Mapping[str, Any] | None = None) -> MoveRequest:
        fleet = self._session.inventory.fleet
        return MoveRequest(fleet=fleet, step=step, move=self._move).model_copy(update=dict(more or {}))

    async def _read(self, node: str, path: str, size: int) -> bytes:
        """A file of a node, whole."""
        channel = self._session.channels[node]
        pieces = [await channel.read(path, offset=at, limit=CHUNK) for at in range(0, size, CHUNK)]
        return b"".join(pieces)
