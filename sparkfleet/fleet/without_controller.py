"""Reads what a fleet has on its nodes' disks while no controller answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.api_keys import KeyRow
from sparkfleet.controlplane.state.tables.usage_ledger import UsageRow, first_day
from sparkfleet.errors import SparkfleetError, UnreadableStateError
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files import state_probe


async def client_or_trouble(session: Session) -> tuple[FleetClient | None, SparkfleetError]:
    """A client of the controller, or None with the reason: the fleet is down, or its controller does not answer.

    Raises:
        UnreachableError: the head cannot be reached.
        WrongFleetError: another fleet's controller answers.
    """
    try:
        return await session.find_controller(), session.is_down()
    except UnreadableStateError as error:
        return None, error


async def stored_keys(session: Session, trouble: SparkfleetError) -> tuple[KeyRow, ...]:
    """The API keys in the store on the head: never a key or its digest. See `_stored_rows` for `trouble` and the errors."""
    rows = await _stored_rows(session, state_probe.keys, "keys", trouble)
    return tuple(map(KeyRow.model_validate_json, rows))


async def stored_usage(session: Session, days: int, trouble: SparkfleetError) -> tuple[UsageRow, ...]:
    """Usage of the last days in the store on the head, today included. See `_stored_rows` for `trouble` and the errors."""
    rows = await _stored_rows(session, state_probe.usage, "counts", trouble)
    found = map(UsageRow.model_validate_json, rows)
    return tuple(row for row in found if row.day >= first_day(days, time.time()))


async def _stored_rows(
    session: Session, program: Callable[[Path], dict[str, object]], noun: str, trouble: SparkfleetError
) -> list[str]:
    """Rows of the store on the head, each as JSON.

    Args:
        program: reads them there, and returns them under its own name.
        noun: users' word for them.
        trouble: the reason for which no controller was asked; an event of the session.

    Raises:
        SparkfleetError: `trouble`, if the store cannot be read.
        NodeError: the head cannot be reached.
    """
    rows = (await session.access.probe(session.inventory.head, program))[program.__name__]
    if rows is None:
        raise trouble
    session.report(TroubleFound(line=f"{trouble.what} The {noun} are those of its store."))
    return [json.dumps(row) for row in rows]
