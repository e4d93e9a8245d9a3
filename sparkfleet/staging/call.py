"""Runs a program of `staging` on a node, and hears what it says while it works."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, TypeVar

from pydantic import ValidationError

from sparkfleet.errors import NodeError
from sparkfleet.facts.untrusted import shown
from sparkfleet.nodes.base import Channel, Completed
from sparkfleet.staging.errors import KINDS, StagingError
from sparkfleet.values import Value

T = TypeVar("T", bound=Value)

LIMIT_S = 24 * 3600.0
"""Longest that a program may take. What a node's disk holds comes in less over any cable."""
LINE_BYTES = 64 << 20
"""A longer line is nothing that our programs say."""
SAID_CHARACTERS = 300


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


class Lines:
    """Cuts what arrives into lines, as it arrives. What is no line of ours (a login's greeting) is passed over."""

    def __init__(self, on_line: Callable[[Line], None]) -> None:
        self._on_line = on_line
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take a piece of output. Raises StagingError where a line has no end."""
        self._rest += piece
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._say(line)
        if len(self._rest) > LINE_BYTES:
            self._rest.clear()

    def _say(self, text: bytes) -> None:
        if not text.startswith(b"{"):
            return
        try:
            line = Line.model_validate_json(text)
        except ValidationError:
            return
        self._on_line(line)


async def call(
    channel: Channel,
    program: tuple[str, str],
    request: Value,
    answer: type[T],
    *,
    on_line: Callable[[Line], None] = lambda _: None,
    timeout_s: float = LIMIT_S,
) -> T:
    """Run a program of ours on a node: its (last) answer.

    Args:
        channel: to the node.
        program: the Python of the node's sparkfleet environment, and a module of this package.
        request: what it reads on stdin.
        answer: what it answers with.
        on_line: is given every line, as it comes.
        timeout_s: how long it may take.

    Raises:
        StagingError: the program says why it could not.
        NodeError: the node cannot be reached, or has no such program.
    """
    heard: list[Line] = []

    def hear(line: Line) -> None:
        if line.event in ("result", "error"):
            heard[:] = [line]
        on_line(line)

    lines = Lines(hear)
    done = await channel.run(
        (program[0], "-m", f"sparkfleet.staging.{program[1]}"),
        stdin=request.model_dump_json().encode(),
        timeout_s=timeout_s,
        on_output=lines.feed,
    )
    if not heard:
        raise _mute(channel.node, done)
    return understood(channel.node, heard[0], answer)


def understood(node: str, line: Line, answer: type[T]) -> T:
    """The value of an answer. Raises StagingError for an error, and for a value that is not what was asked for."""
    if line.event == "error":
        raise KINDS.get(line.kind, StagingError)(f"{node}: {line.what}", means=line.means, do=line.do)
    try:
        return answer.model_validate_json(json.dumps(line.value))
    except ValidationError as error:
        raise StagingError(
            f"{node}: its answer is not understood: {shown(error.errors()[0]['msg'])}.",
            means="The node runs another version of sparkfleet.",
            do="Bring every node to one version: `sparkfleet up`.",
        ) from error


def _mute(node: str, done: Completed) -> NodeError:
    said = done.stderr.strip().splitlines()
    last = said[-1][:SAID_CHARACTERS] if said else "it said nothing"
    return StagingError(
        f"{node}: {done.argv[0]} ended with {done.exit_code} and no answer: {shown(last)}.",
        means="sparkfleet is not installed there, or the program was killed.",
        do="`sparkfleet up` installs the same version on every node.",
    )
