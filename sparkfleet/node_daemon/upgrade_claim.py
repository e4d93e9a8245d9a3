"""Claim of one upgrade on a node: what the node keeps of the former release belongs to the command with its token.

The claim on the head decides which of several commands may change the fleet; each step there renews it. A command that was
killed sends no more steps, and its claim is over after `HELD_S`.
"""

from __future__ import annotations

import math
import time

from pydantic import ValidationError

from sparkfleet.errors import ControlError
from sparkfleet.node_daemon.node_lifecycle import alone
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value

HELD_S = 600.0
"""Seconds after its last step for which an upgrade counts as under way. Between two steps on the head are at most the limits
of a start (180 s for the head, 90 s for the other nodes) and a few calls of at most 60 s."""


class UpgradeClaim(Value):
    """An upgrade that may change this node, as `upgrade.json` has it."""

    token: str
    who: str
    """Origin of its command, `user@host`."""


def read_claim(paths: FleetPaths) -> UpgradeClaim | None:
    """The claim on this node, over or not; None if there is none, or it cannot be read."""
    try:
        return UpgradeClaim.model_validate_json(paths.upgrade_claim.read_bytes())
    except (OSError, ValidationError):
        return None


def require_unclaimed(paths: FleetPaths, claim: UpgradeClaim) -> None:
    """Raises ControlError if another upgrade is under way, by the claim on this node."""
    present = read_claim(paths)
    if present is None or present.token == claim.token:
        return
    try:
        idle_s = abs(time.time() - paths.upgrade_claim.stat().st_mtime)
    except FileNotFoundError:  # it has just ended
        return
    if idle_s < HELD_S:
        raise ControlError(
            f"{present.who} is upgrading this fleet already: the last step was {idle_s:.0f} s ago.",
            means="Nothing was changed: two upgrades at once would remove each other's way back.",
            do="Wait for its end. If that command was killed: `sparkfleet up` starts what is down, and `sparkfleet upgrade`"
            f" can be run in {math.ceil((HELD_S - idle_s) / 60)} min.",
        )


def take_claim(paths: FleetPaths, claim: UpgradeClaim, *, granted: bool) -> bool:
    """Claims this node. False if this upgrade has it already; what another one has left is not its way back.

    Args:
        paths: the fleet's directories.
        claim: of this upgrade.
        granted: the head has given it: the claim here is of one that is over.

    Raises:
        ControlError: another upgrade is under way.
    """
    with alone(paths):
        if not granted:
            require_unclaimed(paths, claim)
        fresh = read_claim(paths) != claim
        _write(paths, claim)
    return fresh


def holds_claim(paths: FleetPaths, claim: UpgradeClaim) -> bool:
    """True if this upgrade may change this node; that renews its claim."""
    if read_claim(paths) != claim:
        return False
    _write(paths, claim)
    return True


def require_claim(paths: FleetPaths, claim: UpgradeClaim) -> None:
    """Renews the claim. Raises ControlError if another upgrade has it, or none."""
    if holds_claim(paths, claim):
        return
    present = read_claim(paths)
    whose = f"that of {present.who} has taken its place" if present else "it has ended here"
    raise ControlError(
        f"This upgrade may not change this node any more: {whose}.",
        means="This step changed nothing here.",
        do="`sparkfleet status` shows what runs.",
    )


def _write(paths: FleetPaths, claim: UpgradeClaim) -> None:
    write_atomically(paths.upgrade_claim, claim.model_dump_json().encode(), durable=True)
