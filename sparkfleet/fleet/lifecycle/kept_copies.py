"""Reads the copies of the head's store that the other nodes of a fleet keep, as its controller knows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments.status import fleet_state
from sparkfleet.fleet.session import Session

ARRIVES_S = 6.0
"""Seconds in which a copy that was just made reaches the nodes that answer: the controller looks for one each second, and
reads its nodes every two."""
LOOK_S = 0.5


class CopyElsewhere(NamedTuple):
    """The copy of the store that a node beside the head keeps."""

    node: str
    copy: KeptCopy | None
    """None: it keeps none, or that is not known."""
    trouble: str
    """The reason for which it is not known to have the newest copy, in words; "" if it has."""
    known: bool
    """False: the node, or the controller, does not answer."""


async def copies_elsewhere(session: Session, made: str = "") -> tuple[CopyElsewhere, ...]:
    """Reads what each node beside the head keeps; () in a fleet of one node.

    Args:
        made: name of a copy that was just made: nodes that answer have some seconds to get it.
    """
    others = [name for name in session.inventory.nodes if name != session.inventory.head]
    if not others:
        return ()
    deadline = time.monotonic() + ARRIVES_S
    found = await _read(session, others)
    while made and not _have(found, made) and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_S)
        found = await _read(session, others)
    return found


def _have(found: Sequence[CopyElsewhere], name: str) -> bool:
    return all(one.copy is not None and one.copy.name == name for one in found if one.known)


async def _read(session: Session, others: Sequence[str]) -> tuple[CopyElsewhere, ...]:
    try:
        overview = await fleet_state(session)
    except SparkfleetError as error:
        return _unknown(others, error.what)
    if not overview.up:
        return _unknown(others, "the fleet is down" if overview.trouble is None else overview.trouble.what)
    return tuple(_elsewhere(overview.status, name) for name in others)


def _elsewhere(status: FleetStatus, name: str) -> CopyElsewhere:
    report = next((one for one in status.nodes if one.name == name), None)
    if report is None:
        trouble = "the controller does not know it: `sparkfleet up` takes it into the fleet"
        return CopyElsewhere(node=name, copy=None, trouble=trouble, known=False)
    otherwise = "" if report.kept_copy is not None else "nothing was sent to it yet"
    trouble = status.uncopied.get(name, otherwise)
    return CopyElsewhere(node=name, copy=report.kept_copy, trouble=trouble, known=bool(report.boot))


def _unknown(others: Sequence[str], trouble: str) -> tuple[CopyElsewhere, ...]:
    return tuple(CopyElsewhere(node=name, copy=None, trouble=trouble, known=False) for name in others)
