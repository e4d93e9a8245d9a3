"""Runs sparkfleet's programs on nodes, with one protocol for all of them.

A program is a module with `main(request, emit)` that needs nothing but Python's standard library. Its text is sent to the
node on standard input, with the request, so that neither is in a process list, and both halves always have one version.
Events come back as JSON lines while it works, and a result or an error at the end (`agent_program.py`). An `Installed`
program is a module of the sparkfleet on the node, and prints the same lines.

Output of a node is untrusted input: its lines are bounded, and callers validate their content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.fact import text
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.values import Value

T = TypeVar("T", bound=Value)
AgentEvent = Mapping[str, Any]
OnAgentEvent = Callable[[AgentEvent], None]

LINE_BYTES = 64 << 20
"""Longest line. Index and headers of Kimi-K2 in NVFP4, 400,000 tensors, take a third of it."""
_SHOWN_CHARACTERS = 400


class ProgramError(NodeError):
    """A program on a node ended with an error of its own. `kind` is the name of its exception there."""

    def __init__(self, kind: str, what: str, *, means: str, do: str) -> None:
        super().__init__(what, means=means, do=do)
        self.kind = kind


class NoAnswer(NodeError):
    """A program on a node ended, or was ended, without a result or an error."""


class Runnable(Protocol):
    """Program that `call` can run: its command, its input, and its error if there is no answer."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command."""
        ...

    def order(self, request: object) -> bytes:
        """The standard input for a request."""
        ...

    def no_answer(self, node: str, output: str) -> NoAnswer:
        """The error for a node that printed `output` and no answer."""
        ...


@dataclass(frozen=True)
class Program:
    """A program that is sent to the node's own python3, 3.8 or later.

    Attributes:
        name: its name in process lists.
        does: its purpose, completing "its Python did not …".
        source: its text.
    """

    name: str
    does: str
    source: str

    @classmethod
    def of(cls, module: str, *, does: str) -> Program:
        """A module of this package, by its dotted name."""
        package, _, name = module.rpartition(".")
        return cls(name=name, does=does, source=(files(package) / f"{name}.py").read_text(encoding="utf-8"))

    @property
    def argv(self) -> tuple[str, ...]:
        """See `Runnable`. The same for every program, but for its name."""
        return ("python3", "-I", "-S", "-c", _far_half(), self.name)

    def order(self, request: object) -> bytes:
        """See `Runnable`."""
        return json.dumps({"program": self.source, "request": request}).encode()

    def no_answer(self, node: str, output: str) -> NoAnswer:
        """See `Runnable`."""
        return NoAnswer(
            f"{node}: its Python did not {self.does} {output}",
            do="sparkfleet needs Python 3.8 or later on the node; check `python3 --version` there.",
        )


@dataclass(frozen=True)
class SentInto:
    """A program that is sent to another interpreter than the node's: one of an engine's environment or container.

    Attributes:
        program: the program; it may use what that environment has.
        interpreter: the interpreter's command, 3.11 or later.
    """

    program: Program
    interpreter: tuple[str, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        """See `Runnable`."""
        return (*self.interpreter, "-P", "-c", _far_half(), self.program.name)

    def order(self, request: object) -> bytes:
        """See `Runnable`."""
        return self.program.order(request)

    def no_answer(self, node: str, output: str) -> NoAnswer:
        """See `Runnable`."""
        return NoAnswer(
            f"{node}: {' '.join(self.interpreter)} did not {self.program.does} {output}",
            do="`sparkfleet logs` has the engine's output.",
        )


@dataclass(frozen=True)
class Installed:
    """A program of the sparkfleet on a node: its interpreter, and a module that reads only the request."""

    python: str
    module: str

    @property
    def argv(self) -> tuple[str, ...]:
        """See `Runnable`."""
        return (self.python, "-P", "-m", self.module)

    def order(self, request: object) -> bytes:
        """See `Runnable`."""
        return json.dumps(request).encode()

    def no_answer(self, node: str, output: str) -> NoAnswer:
        """See `Runnable`."""
        return NoAnswer(
            f"{node}: {self.python} -m {self.module} ended without an answer {output}",
            means="sparkfleet is not installed on the node, or the program was killed.",
            do="Install the same version on every node: `sparkfleet up`.",
        )


@cache
def _far_half() -> str:
    return (files("sparkfleet.remote") / "agent_program.py").read_text(encoding="utf-8")


async def call(
    channel: Channel,
    program: Runnable,
    request: object,
    *,
    on_event: OnAgentEvent = lambda _: None,
    timeout_s: float = 60.0,
) -> Any:
    """Run a program on a node and return its last result as JSON types. `validated` makes it a value of a class.

    Args:
        request: any JSON value.
        on_event: called with every event as it arrives. Its exceptions end the program and are raised here.
        timeout_s: seconds for the whole run.

    Raises:
        ProgramError: the program reported an error.
        NoAnswer: the node has no such Python, or the program printed no result.
        NodeError: the node cannot be reached, or the time ran out.
    """
    last: list[AgentEvent] = []

    def take(line: bytes) -> None:
        event = _event(line)
        if event is None:
            return
        if event["event"] in ("result", "error"):
            last[:] = [event]
        on_event(event)

    lines = Lines(take)
    done = await channel.run(
        program.argv, stdin=program.order(request), timeout_s=timeout_s, on_output=lines.feed
    )
    if not last:
        raise program.no_answer(channel.node, _output(done))
    if last[0]["event"] == "error":
        raise _error(channel.node, last[0])
    return last[0].get("value")


def validated(node: str, value: object, kind: type[T]) -> T:
    """Validate a result as a value of `kind`. Raises NodeError if it is invalid."""
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise NodeError(
            f"{node}: its answer is invalid: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            means="The node's answer was discarded.",
            do="Check which `python3` is on the node: `type -a python3`.",
        ) from error


class Lines:
    """Splits output into lines as it arrives and calls `on_line` with each."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._begun: list[bytes] = []
        self._length = 0

    def feed(self, piece: bytes) -> None:
        """Add a piece of output. Raises NoAnswer for a line that is too long."""
        first, *further = piece.split(b"\n")
        self._add(first)
        for begun in further:
            line = b"".join(self._begun)
            self._begun, self._length = [], 0
            self._add(begun)
            self._on_line(line)

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > LINE_BYTES:
            raise NoAnswer(
                f"a program on the node printed a line of more than {LINE_BYTES} bytes",
                means="No program of sparkfleet prints such lines. It was ended.",
                do="Check which `python3` is on the node: `type -a python3`.",
            )
        self._begun.append(part)


def _event(line: bytes) -> AgentEvent | None:
    """Event of a line; None for foreign output: a warning of the interpreter, a login's greeting."""
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event.get("event"), str) else None


def _error(node: str, event: AgentEvent) -> ProgramError:
    kind, what, means, do = (text(event.get(name, "")) for name in ("kind", "what", "means", "do"))
    return ProgramError(kind, f"{node}: {what}", means=means, do=do)


def _output(done: Completed) -> str:
    output = done.stderr.strip() or done.stdout.strip()
    if output.startswith("Traceback "):
        output = output.rpartition("\n")[2]  # the error itself; what precedes it is longer than what is shown
    output = text(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS) or "no output"
    return f"(exit code {done.exit_code}): {output}"
