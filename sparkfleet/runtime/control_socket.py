"""The supervisor's unix socket: requests, ownership, and notice of the end. Stdlib only.

One JSON object per line, both ways:

    {"op": "status"}   → {"ok": true, "grace_s": …, "status": {…}}
    {"op": "own"}      → the same, and the lease holds while the connection is open; or {"ok": false, "error": …}
    {"op": "wait"}     → the same, once the rank has ended
    {"op": "stop"}     → stops the rank; the same, once it has ended

An owner gets the last status, too, when the rank has ended.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress

Answer = dict[str, object]
NO_OWNER = "no owner"
"""Begin of the reason of an end by a lease that ran out."""
BY_REQUEST = "by its owner's request"
"""Reason of an end that somebody requested."""
_LINE_BYTES = 4096
_CLOSE_S = 1.0
_LATE_S = 1.0
"""Delay of a timer that only a pause of this whole process explains."""


class ControlSocket:
    """Answers requests with `answer`, and stops the rank with `stop`.

    Args:
        answer: the current state, as it is sent.
        stop: ends the rank; its argument is the reason.
        lease_s: seconds that the rank may be without an owner.
    """

    def __init__(self, answer: Callable[[], Answer], stop: Callable[[str], None], lease_s: float) -> None:
        self._answer = answer
        self._stop = stop
        self._lease_s = lease_s
        self._lease: asyncio.TimerHandle | None = None
        self._owner: asyncio.StreamWriter | None = None
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._waiting: set[asyncio.StreamWriter] = set()
        self._stopping = False
        self._ended = False
        self._end_sent = asyncio.Event()

    @property
    def owned(self) -> bool:
        """True if the rank has an owner."""
        return self._owner is not None

    async def open(self, listener: socket.socket) -> None:
        """Starts to answer; the lease runs from now on."""
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=_LINE_BYTES)
        self._start_lease()

    def refuse_owners(self) -> None:
        """Refuses new owners from now on: the rank is stopping."""
        self._stopping = True

    async def farewell(self, linger_s: float) -> None:
        """Sends the end to every waiting client. If there is none, stays `linger_s` for a late one."""
        self._ended = True
        self._cancel_lease()
        for writer in self._waiting:
            self._send_end(writer)
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                await self._end_sent.wait()
        self._server.close()
        await self._close_connections()

    async def _close_connections(self) -> None:
        serving = list(self._serving.values())
        for writer in self._serving:
            writer.close()  # earlier writes are still sent
        if serving:
            await asyncio.wait(serving, timeout=_CLOSE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving[writer] = task
        try:
            while line := await reader.readline():
                self._handle(_operation(line), writer)
                await writer.drain()
        except (ConnectionError, ValueError):  # ValueError: a line beyond the limit
            pass
        finally:
            self._forget(writer)
            writer.close()

    def _handle(self, operation: str, writer: asyncio.StreamWriter) -> None:
        match operation:
            case "status":
                _send(writer, self._answer())
            case "own":
                self._own(writer)
            case "wait":
                self._wait(writer)
            case "stop":
                self._wait(writer)
                self._stop(BY_REQUEST)
            case _:
                _send(writer, _refusal("expected one line of JSON with op: status, own, wait or stop"))

    def _own(self, writer: asyncio.StreamWriter) -> None:
        if self._ended:
            self._send_end(writer)
        elif self._owner or self._stopping:
            _send(writer, _refusal("it has an owner" if self._owner else "it is stopping"))
        else:
            self._owner = writer
            self._waiting.add(writer)
            self._cancel_lease()
            _send(writer, self._answer())

    def _wait(self, writer: asyncio.StreamWriter) -> None:
        if self._ended:
            self._send_end(writer)
        self._waiting.add(writer)

    def _send_end(self, writer: asyncio.StreamWriter) -> None:
        _send(writer, self._answer())
        self._end_sent.set()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._serving.pop(writer, None)
        self._waiting.discard(writer)
        if self._owner is writer:
            self._owner = None
            if not self._ended:
                self._start_lease()

    def _start_lease(self) -> None:
        loop = asyncio.get_running_loop()
        self._lease = loop.call_at(due := loop.time() + self._lease_s, self._run_out, due)

    def _run_out(self, due: float) -> None:
        if asyncio.get_running_loop().time() - due > _LATE_S:
            self._start_lease()  # this process was stopped: an owner may wait since then
        else:
            self._stop(f"{NO_OWNER} for {self._lease_s:g} s")

    def _cancel_lease(self) -> None:
        if self._lease:
            self._lease.cancel()


def _operation(line: bytes) -> str:
    try:
        request = json.loads(line)
    except ValueError:
        return ""
    operation = request.get("op") if isinstance(request, dict) else None
    return operation if isinstance(operation, str) else ""


def _refusal(why: str) -> Answer:
    return {"ok": False, "error": why}


def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")
