"""Channel to the node that this process runs on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from sparkfleet.errors import NodeError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.remote.bounded_output import OUTPUT_BYTES, Output
from sparkfleet.remote.channel import Completed, not_found

__all__ = ["OUTPUT_BYTES", "LocalChannel", "execute"]

_DRAIN_S = 1.0
"""Seconds that a background child may hold the output open after its parent has ended."""
_KILL_S = 5.0
"""Longest wait for a killed child; it may hang in the kernel."""
_ISOLATED = ("python3", "-I", "-S")
"""Begin of a program that uses nothing but Python's own library: the interpreter of this process runs it as well. A
`python3` in PATH may be a wrapper that takes five times as long to start, or missing."""


class LocalChannel:
    """Runs commands as children of this process, each in a session of its own, never through a shell."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.unreached: NodeError | None = None
        self._running: set[asyncio.Task[Completed]] = set()
        self._cut: frozenset[asyncio.Task[Completed]] = frozenset()
        self._is_closed = False

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Channel.run`. Keeps the first 8 MiB of stdout and of stderr; bytes that are not UTF-8 are replaced."""
        if self._is_closed:
            raise self._gone()
        environment = {**os.environ, **(env or {})}
        if tuple(argv[: len(_ISOLATED)]) == _ISOLATED and sys.executable:
            argv = (sys.executable, *argv[1:])
        running = asyncio.create_task(
            execute(argv, env=environment, stdin=stdin, timeout_s=timeout_s, on_output=on_output)
        )
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            return await running
        except asyncio.CancelledError:
            if running in self._cut:
                raise self._gone() from None
            raise

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See `Channel.read`."""
        try:
            return await asyncio.to_thread(_read, path, offset, limit)
        except (OSError, ValueError) as error:
            raise NodeError(f"{path} cannot be read on {self.node}: {error}") from error

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See `Channel.write`. Raises NodeError if the file cannot be written."""
        try:
            await asyncio.to_thread(write_atomically, Path(path), content, mode=mode, durable=True)
        except (OSError, ValueError) as error:
            raise NodeError(f"{path} cannot be written on {self.node}: {error}") from error

    @asynccontextmanager
    async def forward(self, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
        """See `Channel.forward`. This machine is the node, so it is the address itself."""
        if self._is_closed:
            raise self._gone()
        yield host, port

    async def close(self) -> None:
        """See `Channel.close`. Running commands raise NodeError; the channel cannot be used again."""
        self._is_closed = True
        self._cut = frozenset(self._running)
        for running in self._cut:
            running.cancel()
        if self._cut:
            await asyncio.wait(self._cut)

    def _gone(self) -> NodeError:
        return NodeError(f"{self.node}: the channel was closed")


async def execute(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    pass_fds: Sequence[int] = (),
    on_output: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run a child to its end with exactly `env`. Cancelling, or `timeout_s`, kills its process group.

    `on_output` is called with stdout as it arrives; its exceptions end the child and are raised here.

    Raises:
        NodeError: it cannot be started, or the time ran out.
    """
    child = await _start(argv, env, bool(stdin), pass_fds, on_output)
    try:
        if stdin:
            child.feed(stdin)
        async with asyncio.timeout(timeout_s):
            await child.over.wait()
        return await child.completed(argv)
    except TimeoutError:
        raise NodeError(
            f"{argv[0]} did not end within {timeout_s:g} s",
            means="It was killed, with its process group.",
        ) from None
    finally:
        await child.end()


async def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    fed: bool,
    pass_fds: Sequence[int],
    on_output: Callable[[bytes], None] | None,
) -> _Child:
    if not argv:
        raise NodeError("the command is empty")
    loop = asyncio.get_running_loop()
    try:
        _, child = await loop.subprocess_exec(
            lambda: _Child(on_output),
            # Our programs are UTF-8 text, which a locale without it (`LC_ALL=C` with `PYTHONUTF8=0`) refuses to encode.
            *(part.encode(errors="surrogateescape") for part in argv),
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            env=env,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except FileNotFoundError as error:
        raise not_found(argv[0]) from error
    except (OSError, ValueError) as error:
        raise NodeError(f"{argv[0]} cannot be run: {error}") from error
    return child


class _Child(asyncio.SubprocessProtocol):
    """A running child. Not `asyncio.subprocess.Process`: some versions of its `wait` wait for the pipes, too."""

    def __init__(self, on_output: Callable[[bytes], None] | None) -> None:
        self.over = asyncio.Event()
        self._on_output = on_output
        self._error: Exception | None = None
        self._has_exited = False
        self._outputs = {1: Output(), 2: Output()}
        self._open = set(self._outputs)
        self._silent = asyncio.Event()
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's class has its methods only

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].add(data)
        if fd == 1 and self._on_output is not None and self._error is None:
            try:
                self._on_output(data)
            except (
                Exception
            ) as error:  # raised by the caller's function: ends the child, and is raised to the caller
                self._error = error
                self.over.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self._silent.set()

    def process_exited(self) -> None:
        self._has_exited = True
        self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def feed(self, content: bytes) -> None:
        """Write its stdin, as far as it reads it."""
        pipe = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        # It may have ended without reading, at any point: uvloop then refuses what asyncio ignores.
        if not pipe.is_closing():
            pipe.write(content)
        if not pipe.is_closing():
            pipe.write_eof()

    async def completed(self, argv: Sequence[str]) -> Completed:
        """Output and exit of the command, once it is over. Raises what `on_output` raised."""
        if self._error is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._silent.wait()
        if self._error is not None:
            raise self._error
        exit_code = self._transport.get_returncode()
        assert exit_code is not None
        stdout, stderr = (output.text() for output in self._outputs.values())
        return Completed(argv=tuple(argv), exit_code=exit_code, stdout=stdout, stderr=stderr)

    async def end(self) -> None:
        """Close its pipes, and kill its process group if it has not exited."""
        if not self._has_exited:
            with suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await self._closed.wait()


def _read(path: str, offset: int, limit: int) -> bytes:
    # O_NONBLOCK: a FIFO without a writer is empty, not endless.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if offset:  # a FIFO has none
            file.seek(offset)
        return file.read(limit)
