"""Changes the fleet's internal secrets while it serves: tokens of the API, of the engines and of their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkfleet.controlplane.api.api_models import SecretsRequest
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import ControlError, NodeError, SparkfleetError
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.runtime.files.token_secrets import TokenSecrets

BACK = "Bring these nodes back, or delete what is gone for good from the inventory, with its links"
ENDED = frozenset({GroupPhase.FAILED, GroupPhase.STOPPED})


class SecretChange(NamedTuple):
    """State of a change of the internal secrets."""

    former: tuple[str, ...]
    """Deployments with an engine that has a former token until it restarts, or that is just starting."""
    unreached: tuple[str, ...]
    """Nodes that do not have the new secrets yet, each with the reason."""


async def begin_change(session: Session) -> SecretChange | None:
    """Makes new secrets. The former ones are accepted until `finish_change`. None: the fleet is down, and all are new.

    Raises:
        ControlError: a change is under way.
        NodeError: the head cannot be reached.
    """
    found = await session.find_controller()
    if found is None:
        await _step(session, session.inventory.head, "renew")
        return None
    async with found as client:
        made = await _step(session, session.inventory.head, "begin")
        unreached = await _share(session, made["engine_tokens"])
        return SecretChange(with_former_tokens(await client.fleet(), made["current"]), unreached)


async def finish_change(session: Session) -> None:
    """Drops the former secrets.

    Raises:
        ControlError: the fleet is down, no change is under way, or something still has a former secret.
        NodeError: the head cannot be reached.
    """
    async with await session.controller() as client:
        shown = await _step(session, session.inventory.head, "show")
        if not shown["under_way"]:
            raise ControlError(
                "No change of the internal secrets is under way.",
                do="`sparkfleet keys rotate-internal` begins one.",
            )
        unreached = await _share(session, shown["engine_tokens"])
        former = with_former_tokens(await client.fleet(), shown["current"])
        if former or unreached:
            raise _waits(former, unreached)
        # The head as the last one: with a node that is not reached, the change goes on and can be finished later.
        finished = TokenSecrets.parse(shown["engine_tokens"]).finished()
        if unreached := await _share(session, finished.text()):
            raise _waits((), unreached)
        await _step(session, session.inventory.head, "finish")


def with_former_tokens(status: FleetStatus, current: str) -> tuple[str, ...]:
    """Deployments of which an engine has another token than a start would give it now, or is just starting. Pure.

    Args:
        current: mark of the present secret.
    """
    found = (one.name for one in status.deployments if any(_is_former(one.groups, current)))
    return tuple(sorted(found))


def _is_former(groups: Iterable[GroupReport], current: str) -> Iterable[bool]:
    return (group.secret != current for group in groups if group.phase not in ENDED)


def _waits(former: tuple[str, ...], unreached: tuple[str, ...]) -> ControlError:
    parts = [f"engines of {', '.join(former)} have former tokens"] if former else []
    parts += [f"not reached: {'; '.join(unreached)}"] if unreached else []
    restarts = ", ".join(f"`sparkfleet restart {name}`" for name in former)
    return ControlError(
        f"The change of the internal secrets is not finished: {'; '.join(parts)}.",
        means="Former secrets are still accepted; everything serves.",
        do=f"{restarts or BACK}; then `sparkfleet keys rotate-internal --finish` again.",
    )


async def _share(session: Session, engine_tokens: str) -> tuple[str, ...]:
    """Gives every other node the secrets of the engines' tokens; returns those that were not reached."""
    others = [name for name in session.inventory.nodes if name != session.inventory.head]
    done = await asyncio.gather(*(_given(session, name, engine_tokens) for name in others))
    return tuple(filter(None, done))


async def _given(session: Session, node: str, engine_tokens: str) -> str:
    try:
        await _step(session, node, "take", engine_tokens)
    except (NodeError, SparkfleetError) as error:
        what = error.what.rstrip(".")
        return what if what.startswith((f"{node} ", f"{node}:")) else f"{node} ({what})"
    return ""


async def _step(session: Session, node: str, step: str, engine_tokens: str = "") -> dict[str, Any]:
    request = SecretsRequest.model_validate(
        {"fleet": session.inventory.fleet, "step": step, "engine_tokens": engine_tokens}
    )
    return await session.programs.secrets_step(node, request)
