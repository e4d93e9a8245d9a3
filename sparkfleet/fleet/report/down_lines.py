"""Writes a fleet that is down as lines of text, with what `up` brings back. Pure: no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparkfleet.fleet.nodes.surroundings import NodeSurroundings

if TYPE_CHECKING:  # a slow import, which `status` does without
    from sparkfleet.fleet.node_starts import TakenDown


def down_lines(fleet: str, head: NodeSurroundings | None) -> Iterator[str]:
    """A fleet that is down, with what `up` brings back. `head`: surroundings of its head; None if they could not be read."""
    yield f"Fleet {fleet} is down."
    yield from _next_lines(head.generations if head is not None else None)


def taken_down_lines(fleet: str, found: TakenDown) -> Iterator[str]:
    """A fleet after `down`: what was stopped, and what `up` brings back."""
    if found.was_up:
        yield f"Fleet {fleet} is down."
    elif found.has_run:
        yield f"Fleet {fleet} was down already: nothing was stopped."
    else:
        yield f"Fleet {fleet} has never run on these nodes: nothing was stopped."
    yield from _next_lines(found.deployments)


def _next_lines(stored: Mapping[str, int] | None) -> Iterator[str]:
    """The commands that start a fleet which is down, and with what. None: its store could not be read."""
    if stored:
        names = ", ".join(f"{name} (generation {number})" for name, number in sorted(stored.items()))
        yield f"`sparkfleet up` starts it again with {names}."
        return
    if stored is None:
        yield "The deployments that it had are not known: the head's store could not be read."
    yield "`sparkfleet apply FILE` or `sparkfleet up` starts it."
