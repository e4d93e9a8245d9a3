"""Undoes a move of the head, also if the new head, or another node, is not reached any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

from sparkfleet.controlplane.api.api_models import MoveRequest
from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.errors import ControlError, SparkfleetError, SpecError
from sparkfleet.fleet.events import OnEvent, ignored
from sparkfleet.fleet.session import Session

HELD_S = 20.0
"""Time for a controller to see that it may use its store again: it looks every half second, or a round later."""


async def cancel_move(
    session: Session, move: HeadMove, nodes: Collection[str], *, unsettled: bool = False
) -> tuple[str, ...]:
    """Undo a move before the new head has taken over. The old head continues within seconds.

    Args:
        session: the fleet; its inventory names the old head.
        move: the one to be undone; without a token, any move to its node.
        nodes: on which something is to be undone.
        unsettled: it is known that the new head has not taken over, and never will.

    Returns:
        Nodes on which nothing was undone, because they are not reached. What was begun there ends by itself.

    Raises:
        ControlError: the new head has taken over, or may have; or another move is under way.
        NodeError: the old head is not reached.
    """
    new, old = move.to, session.inventory.head
    failed: dict[str, SparkfleetError] = {}
    certain = unsettled
    # First the new head, so that never both act.
    try:
        answer = await _step(session, new, move)
    except SparkfleetError as error:
        failed[new] = error
    else:
        certain = True
        if answer.get("head"):
            raise ControlError(
                f"{new} is the head already.",
                means="The move was not undone.",
                do=f"`sparkfleet move-head {new}` completes it.",
            )
    others = tuple(name for name in nodes if name != new)
    answers = await asyncio.gather(
        *(_step(session, name, move, certain=certain) for name in others), return_exceptions=True
    )
    for name, one in zip(others, answers, strict=True):
        if isinstance(one, SparkfleetError):
            failed[name] = one
        elif isinstance(one, BaseException):
            raise one
    if old in failed:
        raise failed[old]
    return tuple(failed)


async def _step(session: Session, name: str, move: HeadMove, *, certain: bool = True) -> dict[str, Any]:
    fleet = session.inventory.fleet
    request = MoveRequest(fleet=fleet, step="cancel", move=move, certain=certain)
    return await session.programs.move_step(name, request)


async def undo_move(session: Session, new: str, on_event: OnEvent = ignored) -> tuple[str, ...]:
    """Undo a move that was interrupted, and wait until the old head's controller works again, if the fleet is up.

    Args:
        session: the fleet; its inventory names the old head.
        new: the node that would have become the head.

    Returns:
        Nodes that are not reached, see `cancel_move`.

    Raises:
        SpecError: the inventory has no such node, or it is the head.
        NodeError: the old head cannot be reached.
        ControlError: the new head has taken over, or may have; the controller does not work, or a node did not join again.
    """
    session.inventory.require_nodes([new])
    if new == session.inventory.head:
        raise SpecError(
            f"{new} is the head already.",
            do="Name the node that would have become the head, as in `move-head NODE`.",
        )
    unreached = await cancel_move(session, HeadMove(to=new, token=""), tuple(session.inventory.nodes))
    client = await session.find_controller()
    if client is not None:
        await session.lifecycle.until_joined(client, on_event, HELD_S, without=unreached)
    return unreached


def unreached_lines(new: str, unreached: Collection[str]) -> Iterator[str]:
    """Lines on nodes that were not reached while a move was undone.

    Args:
        new: the node that would have become the head.
        unreached: see `cancel_move`.
    """
    if new in unreached:
        yield (
            f"{new} was not reached. It has not taken over: if it comes back, it joins as an ordinary node, and what the"
            " move has begun there ends, after 10 min at the latest."
        )
    if others := [name for name in unreached if name != new]:
        yield f"{', '.join(others)}: not reached; Ray that the move has stopped there continues within a minute."
