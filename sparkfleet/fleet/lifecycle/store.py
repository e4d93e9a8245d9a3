"""Copies and restores the store of a fleet, on its head, with or without a controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.controlplane.state.store_copies import RestoredStore, StoreCopy
from sparkfleet.fleet.session import Session

Confirm = Callable[[str], None]
"""Asks a question; raises to change nothing."""


class MadeCopy(NamedTuple):
    """A copy that was just made."""

    copy: StoreCopy
    path: str
    """On the head."""


async def copy_store(session: Session) -> MadeCopy:
    """Make a checked copy now. Raises ControlError if there is no store, or it cannot be copied."""
    answer = await session.programs.store(_request(session, "copy"))
    path = str(answer.pop("path"))
    return MadeCopy(StoreCopy.model_validate_json(json.dumps(answer)), path)


async def list_copies(session: Session) -> tuple[StoreCopy, ...]:
    """All copies on the head, newest first."""
    answer = await session.programs.store(_request(session, "list"))
    return tuple(StoreCopy.model_validate_json(json.dumps(one)) for one in answer["copies"])


async def restore_copy(session: Session, name: str, confirm: Confirm) -> RestoredStore:
    """Put a copy in place of the store.

    Args:
        name: of the copy; "latest": the newest sound one.
        confirm: is asked before anything is changed.

    Raises:
        ControlError: there is no such copy, or it is not sound.
    """
    found = StoreCopy.model_validate_json(
        json.dumps(await session.programs.store(_request(session, "restore", name, dry=True)))
    )
    served = ", ".join(found.deployments) or "no deployment"
    confirm(f"Put {found.name} in place of the store? It has {served}; what else runs is ended.")
    return _restored(await session.programs.store(_request(session, "restore", found.name)))


async def adopt_running(session: Session, confirm: Confirm) -> RestoredStore:
    """Make a store of exactly what runs. Raises ControlError if no controller waits for its store."""
    answer = await session.programs.store(_request(session, "adopt", dry=True))
    names = ", ".join(f"{name} (generation {generation})" for name, generation in answer["running"])
    confirm(f"Make a store of what runs: {names or 'nothing'}?")
    return _restored(await session.programs.store(_request(session, "adopt")))


async def begin_anew(session: Session, name: str, confirm: Confirm) -> RestoredStore:
    """Put an empty store in place. Raises ControlError if `name` is not the fleet's."""
    await session.programs.store(_request(session, "begin_anew", name, dry=True))
    confirm(f"Forget all deployments, keys and events of {name}, and end what runs?")
    return _restored(await session.programs.store(_request(session, "begin_anew", name)))


def _restored(answer: dict[str, object]) -> RestoredStore:
    return RestoredStore.model_validate_json(json.dumps(answer))


def _request(session: Session, verb: str, name: str = "", *, dry: bool = False) -> StoreRequest:
    return StoreRequest.model_validate(
        {"fleet": session.inventory.fleet, "verb": verb, "name": name, "dry": dry}
    )
