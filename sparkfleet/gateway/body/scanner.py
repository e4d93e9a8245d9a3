"""Reads the model and the requirements of bodies: short ones at once, long ones in processes beside the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sparkfleet.gateway.asgi import Fields
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scan_program import LENGTH, LENGTHS, ScanAnswer
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request
from sparkfleet.gateway.request_parser import RequestTarget, parse_target

log = logging.getLogger("sparkfleet.gateway")

INLINE_BYTES = 256 << 10
"""Longest body that is read on the event loop: 2 ms of it."""
INLINE_VALUES = 10_000
"""Commas and brackets in such a body: 256 KiB of `[[],[],…` take 40 ms."""
SCANNERS = 2
SCAN_S = 60.0
"""Time limit to read one body. 32 MiB of the worst JSON take 2 s on two busy x86 cores, and more behind others."""
NICENESS = 5
IDLE_S = 60.0
"""Seconds after which an idle process is ended: its memory belongs to the engines."""


@dataclass(eq=False)
class _Scanner:
    """One process, connected by a pair of sockets."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ending: asyncio.TimerHandle | None = field(default=None)

    async def ask(self, content_type: bytes, body: RequestBody) -> ScanAnswer:
        self.writer.write(LENGTHS.pack(len(content_type), body.size) + content_type)
        for piece in body:
            self.writer.write(piece)
            await self.writer.drain()
        (length,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
        return ScanAnswer.model_validate_json(await self.reader.readexactly(length))

    def end(self) -> None:
        self.writer.close()
        self.process.kill()
        # Reaped in a thread: the loop of a Ray actor is not that of its main thread and learns of no child's end.
        asyncio.get_running_loop().run_in_executor(None, self.process.wait)


class BodyScanner:
    """Reads bodies. `aclose` ends its processes."""

    def __init__(self) -> None:
        self._idle: list[_Scanner] = []
        self._places = asyncio.Semaphore(SCANNERS)
        self._of_key: dict[str, tuple[asyncio.Lock, int]] = {}
        """A lock for each key with a long body, and the number of requests that use it."""

    async def parse(self, query: bytes, fields: Fields, body: RequestBody, key: str) -> RequestTarget:
        """The model of a request and its requirements.

        Args:
            query: query of the request, which names the model if there is no body.
            key: id of the client's key; each key has one process at a time, so that others get the next.

        Raises:
            ApiError: 400, with the fault and its remedy.
        """
        if body.size <= INLINE_BYTES:
            whole = body.whole()
            if sum(map(whole.count, (b",", b"[", b"{"))) <= INLINE_VALUES:
                return parse_target(query, fields, whole)
        async with self._turn(key), self._places:
            answer = await self._scan(fields.get(b"content-type", b""), body)
        return answer.target()

    async def aclose(self) -> None:
        """Ends the processes."""
        for scanner in tuple(self._idle):
            self._retire(scanner)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        lock, users = self._of_key.get(key, (asyncio.Lock(), 0))
        self._of_key[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._of_key.pop(key)
            if users > 1:
                self._of_key[key] = lock, users - 1

    async def _scan(self, content_type: bytes, body: RequestBody) -> ScanAnswer:
        async with self._one() as scanner:
            try:
                async with asyncio.timeout(SCAN_S):
                    return await scanner.ask(content_type, body)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                log.warning("a body of %d bytes could not be read: %r", body.size, error)
                raise _unreadable() from error

    @contextlib.asynccontextmanager
    async def _one(self) -> AsyncIterator[_Scanner]:
        """A process for one body. One that failed, or was left in the middle, is ended: the next body is not its."""
        scanner = self._idle.pop() if self._idle else await _start()
        if scanner.ending is not None:
            scanner.ending.cancel()
        try:
            yield scanner
        except BaseException:
            scanner.end()
            raise
        scanner.ending = asyncio.get_running_loop().call_later(IDLE_S, self._retire, scanner)
        self._idle.append(scanner)

    def _retire(self, scanner: _Scanner) -> None:
        if scanner.ending is not None:
            scanner.ending.cancel()
        self._idle.remove(scanner)
        scanner.end()


async def _start() -> _Scanner:
    ours, its = socket.socketpair()
    with its:
        # Not asyncio's own: its watcher of children depends on the loop, and uvloop's on the main thread.
        process = await asyncio.to_thread(_open_program, its)
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    return _Scanner(process, reader, writer)


def _open_program(its: socket.socket) -> subprocess.Popen[bytes]:
    # Streams go first if every core is busy: from its first instruction, as its imports take 0.3 s.
    argv = ["nice", "-n", str(NICENESS), sys.executable, "-P", "-m", "sparkfleet.gateway.body.scan_program"]
    return subprocess.Popen(argv, stdin=its.fileno(), stdout=its.fileno())


def _unreadable() -> ApiError:
    return bad_request(
        f"The request body could not be read within {SCAN_S:g} s.",
        do="Send a simpler body; long texts and images belong in one string each.",
        code="too_complex",
    )
