"""Fixtures of the tests of nodes: a process's output, its end without sleeping, a real sshd."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.remote.ssh.config import Hop
from sparkfleet.runtime.ports import free_port

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

GROUP = """
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
tell(child.pid)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pause()
"""
"""For `Herald.script`: a command with a child, and both ignore SIGTERM and SIGHUP."""


class Herald:
    """Receives what scripts `tell`."""

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


SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
AuthorizedKeysFile {home}/authorized
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
# bash then leaves out ~/.bashrc, which is the tester's
SetEnv SHLVL=5
"""


class Sshd:
    """An sshd of this user on a loopback port, with keys of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()  # one that no outgoing connection is given until sshd listens there
        self.user = getpass.getuser()
        self.identity = self.keygen("id")
        (home / "authorized").write_bytes(self.public(self.identity))

    def keygen(self, name: str, *words: str) -> Path:
        path = self.home / name
        words = words or ("-t", "ed25519", "-N", "")
        subprocess.run(["ssh-keygen", "-q", "-C", "", *words, "-f", path], check=True)
        return path

    @staticmethod
    def public(key: Path) -> bytes:
        return key.with_name(key.name + ".pub").read_bytes()

    def fingerprint(self, key: str) -> str:
        command = ["ssh-keygen", "-lf", self.home / f"{key}.pub"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]

    @contextmanager
    def running(self, *host_keys: str, options: str = "") -> Iterator[Sshd]:
        for name in host_keys or ("host",):
            if not (self.home / name).exists():
                self.keygen(name)
        keys = "".join(f"HostKey {self.home}/{name}\n" for name in host_keys or ("host",))
        config = self.home / "config"
        # The first of two values counts.
        config.write_text(options + CONFIG.format(port=self.port, home=self.home) + keys)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log)
        try:
            self._await_start(process)
            yield self
        finally:
            process.terminate()
            process.wait()

    def _await_start(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as link:
                link.recv(4)
                return
        raise AssertionError((self.home / "log").read_text())

    def hop(self, port: int | None = None, **changes: object) -> Hop:
        values = {
            "name": "spark1 (127.0.0.1)",
            "host": "127.0.0.1",
            "port": port or self.port,
            "user": self.user,
            "pins": changes["pins"] if "pins" in changes else frozenset([self.fingerprint("host")]),
            "identities": (self.identity,),
            "only_identities": True,
        }
        return Hop(**{**values, **changes})

    @asynccontextmanager
    async def channel(self, port: int | None = None, **changes: object) -> AsyncIterator[SshChannel]:
        channel = SshChannel("spark1", [self.hop(port, **changes)])
        try:
            yield channel
        finally:
            await channel.close()


@pytest.fixture
def sshd(tmp_path: Path) -> Sshd:
    """An sshd that does not run yet."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's sshd and ssh-keygen are not installed")
    home = tmp_path / "sshd"
    home.mkdir()
    return Sshd(home)


@pytest.fixture
async def ssh(sshd: Sshd) -> AsyncIterator[SshChannel]:
    """A channel through a real sshd."""
    with sshd.running():
        async with sshd.channel() as channel:
            yield channel


class Proxy:
    """A TCP connection to somewhere that can be cut, or fall silent, at a chosen moment."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._writers: list[asyncio.StreamWriter] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self._flows.set()
            self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def stall(self) -> None:
        """Carry nothing more, without an error."""
        self._flows.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
def proxied() -> Callable[[int], Proxy]:
    return Proxy


@pytest.fixture
def serving() -> Callable[..., AbstractAsyncContextManager[int]]:
    """A server on a loopback port, of which nothing is left afterwards."""

    @asynccontextmanager
    async def listen(serve: Callable[..., Awaitable[None]]) -> AsyncIterator[int]:
        tasks: set[asyncio.Task[None]] = set()

        async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            try:
                await serve(reader, writer)
            except asyncio.CancelledError:
                return
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(tracked, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(3):  # for the loop to close the sockets
                await asyncio.sleep(0)

    return listen
