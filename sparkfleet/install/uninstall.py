"""Runs the program that removes sparkfleet from a node."""

from __future__ import annotations

from pathlib import Path

from sparkfleet.remote.agent import Program, call, validated
from sparkfleet.remote.channel import Channel
from sparkfleet.runtime.files.state_probe import fleet_label
from sparkfleet.values import Value

REMOVE_S = 300.0
PROGRAM = Program.of("sparkfleet.install.removal_program", does="remove sparkfleet")


class Removal(Value):
    """Files that are, or were, removed from one machine."""

    found: tuple[tuple[str, int], ...] = ()
    """Paths with their bytes."""
    kept: tuple[str, ...] = ()
    """Directories and settings that stay, with the reason."""
    of_root: tuple[str, ...] = ()
    """Files that only root can remove."""
    runs: tuple[str, ...] = ()
    """Signs that the fleet is up there; then nothing is removed."""


async def removal(channel: Channel, verb: str, root: str, *, only_state: bool, caches: bool) -> Removal:
    """Find (`look`) or `remove` what sparkfleet made on a node, whose state directory is `root`.

    Raises NodeError if the node cannot be reached, or something could not be removed.
    """
    label = fleet_label(Path(root))
    request = {"verb": verb, "root": root, "label": label, "only_state": only_state, "caches": caches}
    return validated(channel.node, await call(channel, PROGRAM, request, timeout_s=REMOVE_S), Removal)
