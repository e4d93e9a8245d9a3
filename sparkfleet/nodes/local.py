"""The node that this process runs on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Completed
from sparkfleet.nodes.files import write_atomically

OUTPUT_BYTES = 8 << 20
"""Kept of stdout and of stderr each; the rest is read and dropped."""
_DRAIN_S = 1.0
"""How long a background child may hold the output open after its parent has ended."""
_KILL_S = 5.0
"""How long a killed child is waited for; it may hang in the kernel."""


class LocalChannel:
    """Runs commands as children of this process, each in a session of its own, never through a shell."""

    def __init__(self, node: str) -> None:
        self.node = node

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> Completed:
        """See `Channel.run`. Of stdout and stderr the first 8 MiB are kept; what is not UTF-8 is replaced."""
        return await execute(argv, env={**os.environ, **(env or {})}, stdin=stdin, timeout_s=timeout_s)

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See `Channel.read`."""
        try:
            return await asyncio.to_thread(_read, path, offset, limit)
        except (OSError, ValueError) as error:
            raise NodeError(f"{path} cannot be read on {self.node}: {error}") from error

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See `Channel.write`. Raises NodeError where it cannot be written."""
        try:
            await asyncio.to_thread(write_atomically, Path(path), content, mode=mode, durable=True)
        except (OSError, ValueError) as error:
            raise NodeError(f"{path} cannot be written on {self.node}: {error}") from error


async def execute(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run a child to its end with exactly `env`. Cancelling, or `timeout_s`, kills its process group.

    Raises:
        NodeError: it cannot be started, or the time ran out.
    """
    child = await _start(argv, env, bool(stdin), pass_fds)
    try:
        if stdin:
            child.feed(stdin)
        async with asyncio.timeout(timeout_s):
            await child.exited.wait()
        return await child.completed(argv)
    except TimeoutError:
        raise NodeError(
            f"{argv[0]} did not end within {timeout_s:g} s",
            means="It was killed, with everything in its process group.",
        ) from None
    finally:
        await child.end()


async def _start(argv: Sequence[str], env: Mapping[str, str], fed: bool, pass_fds: Sequence[int]) -> _Child:
    if not argv:
        raise NodeError("there is nothing to run: the command is empty")
    loop = asyncio.get_running_loop()
    try:
        _, child = await loop.subprocess_exec(
            _Child,
            *argv,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            env=env,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except FileNotFoundError as error:
        raise NodeError(
            f"{argv[0]} was not found", do="install it, or put its directory into PATH"
        ) from error
    except (OSError, ValueError) as error:
        raise NodeError(f"{argv[0]} cannot be run: {error}") from error
    return child


class _Child(asyncio.SubprocessProtocol):
    """A running child. Not `asyncio.subprocess.Process`: some versions of its `wait` wait for the pipes, too."""

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self._outputs = {1: _Output(), 2: _Output()}
        self._open = set(self._outputs)
        self._silent = asyncio.Event()
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is one by its methods only

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].add(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def feed(self, content: bytes) -> None:
        """Give it its stdin, as far as it wants to read it."""
        pipe = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        # It may have ended without reading, at any point: uvloop then refuses what asyncio ignores.
        if not pipe.is_closing():
            pipe.write(content)
        if not pipe.is_closing():
            pipe.write_eof()

    async def completed(self, argv: Sequence[str]) -> Completed:
        """What it said and how it ended, once it has exited."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._silent.wait()
        exit_code = self._transport.get_returncode()
        assert exit_code is not None
        stdout, stderr = (output.text() for output in self._outputs.values())
        return Completed(argv=tuple(argv), exit_code=exit_code, stdout=stdout, stderr=stderr)

    async def end(self) -> None:
        """Leave nothing behind: no pipe, and where it has not exited, no process of its group."""
        if not self.exited.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await self._closed.wait()


class _Output:
    """The first `OUTPUT_BYTES` of a stream, and how much came after them."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = OUTPUT_BYTES - len(self._kept)
        self._kept += data[:room]
        self._dropped += max(len(data) - room, 0)

    def text(self) -> str:
        text = self._kept.decode(errors="replace")
        return f"{text}\n[cut: {self._dropped} more bytes]" if self._dropped else text


def _read(path: str, offset: int, limit: int) -> bytes:
    # O_NONBLOCK: a FIFO nobody writes to is empty, not endless.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if offset:  # a FIFO has none
            file.seek(offset)
        return file.read(limit)
