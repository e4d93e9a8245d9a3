"""Reads one answer of a node as a value; a missing command is an answer, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sparkfleet.errors import FactError, NodeError
from sparkfleet.remote.channel import Channel, Completed

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Parser(Protocol[T_co]):
    """A fact's `parse`."""

    def __call__(self, output: str, /) -> T_co:
        """The value in `output`."""
        ...


async def ask(channel: Channel, argv: Sequence[str], parse: Parser[T], *, timeout_s: float = 20.0) -> T:
    """Runs a command that every node has, and parses its output.

    Raises:
        NodeError: it cannot be run, or fails.
        FactError: its output cannot be parsed.
    """
    done = await channel.run(tuple(argv), timeout_s=timeout_s)
    if done.exit_code != 0:
        printed = " ".join(done.stderr.split())[:200]
        raise NodeError(
            f"{channel.node}: `{' '.join(argv)[:80]}` failed with exit code {done.exit_code}: {printed}",
            do="Run the command by hand on the node.",
        )
    return parse(done.stdout)


def value_or(
    answer: Completed | NodeError, parse: Parser[T], otherwise: T, *, fine: Sequence[int] = (0,)
) -> T:
    """The value of an answer; `otherwise` if the tool is missing or failed (not `fine`), or its output cannot be parsed."""
    if isinstance(answer, NodeError) or answer.exit_code not in fine:
        return otherwise
    try:
        return parse(answer.stdout)
    except FactError:
        return otherwise
