"""Channel to a node: one small protocol, with `local.py` and `ssh/` beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sparkfleet.errors import NodeError
from sparkfleet.values import Value


class Completed(Value):
    """A command that ran to its end. `exit_code` is negative when a signal ended it, as in `subprocess`."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


def not_found(program: str) -> NodeError:
    """The error of a program that a node does not have."""
    return NodeError(
        f"{program} was not found",
        do="Correct its path: `environment` and `engines` of the inventory have those of the owner's own."
        if program.startswith("/")
        else "Install it on the node, or put its directory into PATH.",
    )


class Channel(Protocol):
    """Runs commands and moves small files on one node. Commands are argv, never strings."""

    node: str
    unreached: NodeError | None
    """Reason why the node was never reached through this channel; None: it was, or no attempt has ended."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run `argv` to its end; a non-zero exit is a value, not an exception.

        `env` is set on top of the node's own environment. Cancelling, or `timeout_s`, kills the whole process group.
        `on_output` is called with stdout as it arrives, in pieces that need not end with a line.

        Raises:
            NodeError: the node cannot be reached, the program does not exist, or the time ran out.
        """
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """At most `limit` bytes of a file from `offset`. Raises NodeError if it cannot be read."""
        ...

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a small file atomically, with `mode`. A missing directory is created (0700)."""
        ...

    def forward(self, host: str, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """While entered, an address on this machine's loopback that forwards to `host:port` from the node."""
        ...

    async def close(self) -> None:
        """Close the connection. Running commands are cancelled."""
        ...
