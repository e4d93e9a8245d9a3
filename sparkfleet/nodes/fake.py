"""A node that does not exist, for tests: answers what it was told to, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Completed


@dataclass(frozen=True)
class Call:
    """One command that a fake node was asked to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


Response = Completed | NodeError | str | Callable[[Call], Completed]
"""What to answer: a whole result, an error to raise, the stdout of a success, or a function of the call."""


class FakeChannel:
    """A `Channel` whose answers are given beforehand.

    Args:
        node: its name.
        responses: by the first words of a command; of several that match, the longest counts.
        files: what can be read; what is written is found here, too.

    Attributes:
        calls: every command, in order.
        files: path to content.
        modes: path to mode of what was written.
    """

    def __init__(
        self,
        node: str,
        responses: Mapping[tuple[str, ...], Response] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.node = node
        self.calls: list[Call] = []
        self.files: dict[str, bytes] = dict(files or {})
        self.modes: dict[str, int] = {}
        self._responses = dict(responses or {})

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> Completed:
        """See `Channel.run`. A command without a response is a program that does not exist."""
        call = Call(tuple(argv), dict(env or {}), stdin)
        self.calls.append(call)
        match self._response(call.argv):
            case None:
                raise NodeError(f"{' '.join(argv)}: the fake node {self.node} has no response for it")
            case NodeError() as error:
                raise error
            case Completed() as completed:
                return completed
            case str(stdout):
                return Completed(argv=call.argv, exit_code=0, stdout=stdout, stderr="")
            case answer:
                return answer(call)

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See `Channel.read`."""
        if path not in self.files:
            raise NodeError(f"{path} cannot be read on {self.node}: it does not exist")
        return self.files[path][offset : offset + limit]

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See `Channel.write`."""
        self.files[path] = content
        self.modes[path] = mode

    def _response(self, argv: tuple[str, ...]) -> Response | None:
        matching = [prefix for prefix in self._responses if argv[: len(prefix)] == prefix]
        return self._responses[max(matching, key=len)] if matching else None
