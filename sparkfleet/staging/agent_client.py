"""Runs a program of `staging` on a node, with its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from pydantic import ValidationError

from sparkfleet.errors import NodeError
from sparkfleet.remote import agent
from sparkfleet.remote.agent import AgentEvent, Installed, NoAnswer, ProgramError
from sparkfleet.remote.channel import Channel
from sparkfleet.staging.errors import KINDS, StagingError
from sparkfleet.values import Value

T = TypeVar("T", bound=Value)

LIMIT_S = 24 * 3600.0
"""Time limit of a program. A full disk is copied in less over any cable."""


class Line(Value):
    """One line of a node's program."""

    event: Literal["progress", "note", "result", "error"]
    done_bytes: int = 0
    total_bytes: int = 0
    text: str = ""
    phase: str = ""
    value: object = None
    kind: str = ""
    what: str = ""
    means: str = ""
    do: str = ""


async def call(
    channel: Channel,
    program: tuple[str, str],
    request: Value,
    answer: type[T],
    *,
    on_line: Callable[[Line], None] = lambda _: None,
    timeout_s: float = LIMIT_S,
) -> T:
    """Run a program of `staging` on a node and return its last answer.

    Args:
        channel: to the node.
        program: the Python of the node's sparkfleet environment, and a module of this package.
        request: its input on stdin.
        answer: class of its answer.
        on_line: called with every line as it arrives.
        timeout_s: time limit.

    Raises:
        StagingError: the program reported an error.
        NodeError: the node cannot be reached, or has no such program.
    """
    installed = Installed(program[0], f"sparkfleet.staging.agent.{program[1]}")

    def on_event(event: AgentEvent) -> None:
        line = line_of(event)
        if line is not None:
            on_line(line)

    content = request.model_dump(mode="json")
    try:
        value = await agent.call(channel, installed, content, on_event=on_event, timeout_s=timeout_s)
    except ProgramError as error:
        raise KINDS.get(error.kind, StagingError)(error.what, means=error.means, do=error.do) from error
    except NoAnswer as error:
        raise StagingError(error.what, means=error.means, do=error.do) from error
    return validated(channel.node, value, answer)


def line_of(event: AgentEvent) -> Line | None:
    """An event as a line; None if it is not one of staging's."""
    try:
        return Line.model_validate(dict(event))
    except ValidationError:
        return None


def validated(node: str, value: object, answer: type[T]) -> T:
    """Validate the value of an answer. Raises StagingError if it is invalid."""
    try:
        return agent.validated(node, value, answer)
    except NodeError as error:
        raise StagingError(
            error.what,
            means="The node runs another version of sparkfleet.",
            do="Bring every node to one version: `sparkfleet up`.",
        ) from error
