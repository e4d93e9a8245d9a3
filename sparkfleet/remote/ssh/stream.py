"""Asyncio interface of a paramiko channel: one thread opens it, moves its bytes, and closes it.

Paramiko's calls block: `recv` and `send` write to the socket, and wait while keys are exchanged. One thread sends
everything on a channel, its CLOSE last: nothing can follow it (see `transport.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

import paramiko

from sparkfleet.remote.ssh.transport import Arrivals, Transport

_PIECE = 1 << 18
_SENT_PIECE = 1 << 15
_IN_FLIGHT = 4 << 20
"""Bytes that may wait for the event loop; above that reading pauses, and the sender's window closes."""


class Receiver(Protocol):
    """Callbacks of a stream, in the event loop."""

    def received(self, data: bytes) -> None:
        """Data of stdout, or of the tunnel."""

    def received_stderr(self, data: bytes) -> None:
        """Data of stderr."""

    def drained(self) -> None:
        """Everything that was passed to `send` has been sent."""

    def eof(self) -> None:
        """The other side has sent its end of data."""

    def exited(self, exit_code: int) -> None:
        """The command has ended; its children may still hold the output open."""

    def closed(self) -> None:
        """The channel is closed, the last call; without `eof` before it, the data is incomplete."""


class Stream:
    """Both directions of one channel. Belongs to the event loop that creates it."""

    def __init__(self, transport: Transport, receiver: Receiver) -> None:
        self._transport = transport
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._begun: Future[None] = Future()
        self._begun.set_running_or_notify_cancel()  # a cancellation cancels only the wait
        self._arrivals: Arrivals | None = None
        self._outbox: deque[memoryview] = deque()
        self._ending = self._closing = self._is_full = False
        self._paused = True  # until `begin` has returned
        # Each written by one side only, the loop or the thread: no lock is needed.
        self._given = self._sent = self._read = self._delivered = 0
        self._notified: set[str] = set()

    async def begin(self, ask: Callable[[], paramiko.Channel], command: str | None = None) -> None:
        """Open the channel and run a command on it, if there is one. Raises paramiko's exceptions.

        If it is cancelled, the channel is closed once it is open.
        """
        work = threading.Thread(target=self._run, args=(ask, command), name="sparkfleet-ssh-stream")
        work.daemon = True
        work.start()
        try:
            await asyncio.wrap_future(self._begun)
        except asyncio.CancelledError:
            self.close()
            raise
        self.pause(False)

    def send(self, data: bytes) -> None:
        """Send, as the window allows. Never blocks."""
        self._given += len(data)
        self._outbox.append(memoryview(data))
        self._poke()

    def finish(self) -> None:
        """Send the end of input after what is waiting."""
        self._ending = True
        self._poke()

    def close(self) -> None:
        """Close the channel and drop unsent data. Never blocks."""
        self._closing = True
        self._poke()

    def pause(self, paused: bool) -> None:
        """Pause or resume receiving."""
        self._paused = paused
        self._poke()

    @property
    def waiting(self) -> int:
        """Bytes that were passed to `send` and are not sent yet."""
        return self._given - self._sent

    @property
    def was_opened(self) -> bool:
        """True if the channel was opened, even if its command was refused."""
        return self._arrivals is not None

    def _poke(self) -> None:
        if self._arrivals is not None:
            self._arrivals.news.set()

    # The methods below run in the thread.

    def _run(self, ask: Callable[[], paramiko.Channel], command: str | None) -> None:
        try:
            channel, arrivals = self._open(ask, command)
        except Exception as error:
            self._begun.set_exception(error)
            return
        self._begun.set_result(None)
        channel.settimeout(0.0)
        with suppress(OSError, EOFError, paramiko.SSHException):  # data in transit is lost with the channel
            while self._move(channel, arrivals):
                arrivals.news.wait()
                arrivals.news.clear()
        self._end(channel)
        self._notify(self._receiver.closed)

    def _open(
        self, ask: Callable[[], paramiko.Channel], command: str | None
    ) -> tuple[paramiko.Channel, Arrivals]:
        channel = ask()
        self._arrivals = arrivals = self._transport.packets.of(channel)
        try:
            if command is not None and not self._closing:
                channel.exec_command(command)
        except BaseException:
            self._end(channel)
            raise
        return channel, arrivals

    def _end(self, channel: paramiko.Channel) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()
        self._transport.packets.forget(channel)

    def _move(self, channel: paramiko.Channel, arrivals: Arrivals) -> bool:
        """Move the data that is ready; True if there is more to come."""
        # Read before receiving: no data follows any of these events.
        ended, closed, exit_code = arrivals.eof, arrivals.closed, arrivals.exit_code
        emptied = not self._closing and self._receive(channel)
        if exit_code is not None:
            self._notify_once("exited", exit_code)
        if ended and emptied:
            self._notify_once("eof")
        if not closed:
            self._transmit(channel, arrivals)
        return not (self._closing or (closed and emptied))

    def _receive(self, channel: paramiko.Channel) -> bool:
        """True if everything that arrived was read."""
        while channel.recv_stderr_ready() and self._room():
            self._hand_over(self._receiver.received_stderr, channel.recv_stderr(_PIECE))
        while channel.recv_ready() and self._room():
            self._hand_over(self._receiver.received, channel.recv(_PIECE))
        return not (channel.recv_ready() or channel.recv_stderr_ready())

    def _room(self) -> bool:
        if self._paused or self._closing:
            return False
        if self._read - self._delivered >= _IN_FLIGHT:
            self._is_full = True  # set before the second check: otherwise no delivery would end the wait
        return self._read - self._delivered < _IN_FLIGHT

    def _transmit(self, channel: paramiko.Channel, arrivals: Arrivals) -> None:
        ending = self._ending  # read first: data passed to `send` before it is sent before the end
        before = self._sent
        while self._outbox and not (self._closing or arrivals.closed) and channel.send_ready():
            self._send_piece(channel)
        if self._outbox or self._closing:
            return
        if self._sent != before:
            self._notify(self._receiver.drained)
        if ending and "end" not in self._notified:
            self._notified.add("end")
            channel.shutdown_write()

    def _send_piece(self, channel: paramiko.Channel) -> None:
        piece = self._outbox[0]
        sent = channel.send(bytes(piece[:_SENT_PIECE])) if piece else 0
        if piece and not sent:
            raise EOFError  # the connection has just ended
        self._sent += sent
        self._outbox[0] = piece[sent:]
        if sent == len(piece):
            self._outbox.popleft()

    def _hand_over(self, receive: Callable[[bytes], None], data: bytes) -> None:
        self._read += len(data)
        self._notify(self._deliver, receive, data)

    def _notify_once(self, what: str, *args: object) -> None:
        if what not in self._notified:
            self._notified.add(what)
            self._notify(getattr(self._receiver, what), *args)

    def _notify(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _deliver(self, receive: Callable[[bytes], None], data: bytes) -> None:
        self._delivered += len(data)
        receive(data)
        if self._is_full:
            self._is_full = False
            self._poke()
