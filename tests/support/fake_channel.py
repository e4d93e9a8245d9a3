"""Fake node for tests: returns prepared answers, and records its calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Completed


@dataclass(frozen=True)
class Call:
    """One command that a fake node ran."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


def program_request(call: Call) -> Any:
    """Request to a program of sparkfleet (see `agent.py`)."""
    return json.loads(call.stdin)["request"]


def program_result(value: object, *events: Mapping[str, object]) -> str:
    """Output of a program of sparkfleet: events, then its result."""
    lines = (*events, {"event": "result", "value": value})
    return "".join(json.dumps(line) + "\n" for line in lines)


Response = Completed | NodeError | str | tuple[str, ...] | Callable[[Call], Completed]
"""Answer to a command: a whole result, an error to raise, the stdout of a success (in pieces, if it is a tuple), or
a function of the call."""


class FakeChannel:
    """A `Channel` with prepared answers.

    Args:
        node: its name.
        responses: by the first words of a command; the longest match counts.
        files: files that can be read; written files are added.

    Attributes:
        calls: every command, in order.
        files: path to content.
        modes: path to mode of what was written.
        forwarded: every `host:port` that was forwarded, in order.
        is_closed: True if `close` was called; every later call fails.
    """

    def __init__(
        self,
        node: str,
        responses: Mapping[tuple[str, ...], Response] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.node = node
        self.unreached: NodeError | None = None
        self.calls: list[Call] = []
        self.files: dict[str, bytes] = dict(files or {})
        self.modes: dict[str, int] = {}
        self.forwarded: list[tuple[str, int]] = []
        self.is_closed = False
        self._responses = dict(responses or {})

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Channel.run`. A command without a response is a program that does not exist."""
        self._check_open()
        call = Call(tuple(argv), dict(env or {}), stdin)
        self.calls.append(call)
        completed, pieces = self._answer(call)
        if on_output is not None:
            for piece in pieces:
                on_output(piece.encode())
        return completed

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See `Channel.read`."""
        self._check_open()
        if path not in self.files:
            raise NodeError(f"{path} cannot be read on {self.node}: it does not exist")
        return self.files[path][offset : offset + limit]

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See `Channel.write`."""
        self._check_open()
        self.files[path] = content
        self.modes[path] = mode

    @asynccontextmanager
    async def forward(self, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
        """See `Channel.forward`. The address itself: let a test listen there."""
        self._check_open()
        self.forwarded.append((host, port))
        yield host, port

    async def close(self) -> None:
        """See `Channel.close`."""
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise NodeError(f"{self.node}: the channel was closed")

    def _answer(self, call: Call) -> tuple[Completed, tuple[str, ...]]:
        """The result, and its stdout in pieces."""
        match self._response(call.argv):
            case None:
                raise NodeError(f"{' '.join(call.argv)}: the fake node {self.node} has no response for it")
            case NodeError() as error:
                raise error
            case Completed() as completed:
                return completed, (completed.stdout,)
            case str(stdout):
                return Completed(argv=call.argv, exit_code=0, stdout=stdout, stderr=""), (stdout,)
            case tuple(pieces):
                return Completed(argv=call.argv, exit_code=0, stdout="".join(pieces), stderr=""), pieces
            case answer:
                completed = answer(call)
                return completed, (completed.stdout,)

    def _response(self, argv: tuple[str, ...]) -> Response | None:
        matching = [prefix for prefix in self._responses if argv[: len(prefix)] == prefix]
        return self._responses[max(matching, key=len)] if matching else None
