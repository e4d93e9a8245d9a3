"""What the tests of `nodes` share: hearing from a process, and waiting for its end, without sleeping."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

PATIENCE_S = 20.0

PRELUDE = """
import os, signal, socket, subprocess, sys, time

def tell(*words):
    with socket.create_connection(("127.0.0.1", {port})) as link:
        link.sendall((" ".join(map(str, words)) + "\\n").encode())

def orphan(then):
    # Double fork, a session of its own: no parent, group or session leads to it any more.
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    then()
    os._exit(0)

def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("orphan", os.getpid())
    signal.pause()
"""


class Herald:
    """Hears what scripts `tell`."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self.port = 0

    async def hear(self) -> list[str]:
        """The words of the next message."""
        return (await asyncio.wait_for(self._heard.get(), PATIENCE_S)).split()

    async def hear_pid(self) -> int:
        """The last word of the next message, a pid."""
        return int((await self.hear())[-1])

    def script(self, body: str) -> tuple[str, ...]:
        """A small Python program that can `tell`."""
        return (sys.executable, "-S", "-c", PRELUDE.format(port=self.port) + body)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Herald]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._heard.put_nowait((await reader.readline()).decode())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@pytest.fixture
async def herald() -> AsyncIterator[Herald]:
    async with Herald().listening() as herald:
        yield herald


@pytest.fixture
def ended() -> Callable[[int], Awaitable[None]]:
    """Waits for the end of any process, also of one that is nobody's child here."""

    async def wait(pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, end.set)
        try:
            await asyncio.wait_for(end.wait(), PATIENCE_S)
        finally:
            loop.remove_reader(handle)
            os.close(handle)

    return wait
