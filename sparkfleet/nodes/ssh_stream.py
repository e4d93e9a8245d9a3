"""A paramiko channel as asyncio sees it, without a thread of its own.

Paramiko's calls block: `recv` and `send` write to the socket, and wait while keys are exchanged. So every call is made
in a small pool of threads, in turns: what paramiko's own thread received, or a widened window, asks for a turn; a turn
moves what can be moved at once, and ends. A stream has one turn at a time, and all that is sent on its channel is sent in
them: so nothing is sent after the channel's close.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Protocol

import paramiko

_PIECE = 1 << 18
_SENT_PIECE = 1 << 15
_IN_FLIGHT = 4 << 20
"""Bytes that may wait for the event loop; beyond them nothing more is read, and the sender's window closes."""


NO_STATUS = -1000
"""The exit status of what has none. Paramiko's -1 could be SIGHUP."""


class Receiver(Protocol):
    """What a stream tells, in the event loop."""

    def received(self, data: bytes) -> None:
        """Of stdout, or of the tunnel."""

    def received_stderr(self, data: bytes) -> None:
        """Of stderr."""

    def drained(self) -> None:
        """Everything that was given to `send` is on its way."""

    def eof(self) -> None:
        """The other side has said that it sends no more."""

    def exited(self) -> None:
        """The command has ended; what it started may still hold the output open."""

    def closed(self) -> None:
        """The channel is gone; where `eof` was not told, in the middle. The last call."""


class Stream:
    """One channel's two directions.

    Args:
        channel: just opened; nothing may have been read from it.
        pool: where paramiko's calls are made.
        receiver: who is told.
    """

    def __init__(self, channel: paramiko.Channel, pool: Executor, receiver: Receiver) -> None:
        self.channel = channel
        self._pool = pool
        self._receiver = receiver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._turning = self._again = False
        self._outbox: deque[memoryview] = deque()
        self._ending = self._closing = False
        self._paused = False
        self._in_flight = 0
        self._told: set[str] = set()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be told of everything that happens on the channel from now on. Call it before the first byte can come."""
        self._loop = loop
        self.channel.settimeout(0.0)
        self.channel.exit_status = NO_STATUS
        arrived = _Hook(self.poke)
        self.channel.in_buffer.set_event(arrived)
        self.channel.in_stderr_buffer.set_event(arrived)
        self.channel.status_event = _Hook(self.poke)
        self.channel.out_buffer_cv = _Window(self.channel.lock, self.poke)
        self.channel.answer_close = self.close  # type: ignore[attr-defined] # ours: see `host_keys`
        self.poke()

    def send(self, data: bytes) -> None:
        """Send, as the window allows. Never blocks."""
        with self._lock:
            self._outbox.append(memoryview(data))
        self.poke()

    def finish(self) -> None:
        """Send the end of input after what is waiting."""
        self._ending = True
        self.poke()

    def close(self) -> None:
        """Close the channel; what waits to be sent is dropped. Never blocks. From any thread."""
        self._closing = True
        self.poke()

    def pause(self, paused: bool) -> None:
        """Stop or go on receiving."""
        self._paused = paused
        if not paused:
            self.poke()

    @property
    def waiting(self) -> int:
        """Bytes that were given to `send` and are not on their way yet."""
        with self._lock:
            return sum(map(len, self._outbox))

    def poke(self) -> None:
        """Ask for a turn. From any thread."""
        with self._lock:
            self._again = True
            if self._turning:
                return
            self._turning = True
        # A pool that is shut down: the connection is closed, and its end was told.
        with suppress(RuntimeError):
            self._pool.submit(self._turn)

    def _turn(self) -> None:
        while self._more():
            try:
                self._move()
            except (OSError, EOFError, paramiko.SSHException):
                # What was being moved is lost, and with it the channel; its closing asks for the next turn.
                self.channel.close()

    def _more(self) -> bool:
        with self._lock:
            self._turning, self._again = self._again, False
            return self._turning

    def _move(self) -> None:
        # Asked before reading: nothing comes after any of them.
        closed = self.channel.closed
        exited = self.channel.exit_status_ready()
        ended = bool(self.channel.eof_received)
        emptied = self._receive()
        if self._closing:
            self.channel.close()  # once; it asks for the next turn
        elif not closed:
            self._transmit()
        if exited:
            self._tell_once("exited")
        if ended and emptied:
            self._tell_once("eof")
        if closed and emptied:
            self._tell_once("closed")

    def _receive(self) -> bool:
        """Whether everything that has arrived was read."""
        while self.channel.recv_stderr_ready() and self._room():
            self._hand_over(self._receiver.received_stderr, self.channel.recv_stderr(_PIECE))
        while self.channel.recv_ready() and self._room():
            self._hand_over(self._receiver.received, self.channel.recv(_PIECE))
        return not (self.channel.recv_ready() or self.channel.recv_stderr_ready())

    def _room(self) -> bool:
        return not self._paused and self._in_flight < _IN_FLIGHT

    def _transmit(self) -> None:
        ending = self._ending  # asked before: what is given to `send` until then is sent first
        moved = False
        while (piece := self._next_piece()) is not None and not self._closing and self.channel.send_ready():
            sent = self.channel.send(bytes(piece[:_SENT_PIECE]))
            if sent == 0:  # it was closed meanwhile
                return
            self._done(sent)
            moved = True
        if moved and piece is None:
            self._tell(self._receiver.drained)
        if piece is None and ending and "finished" not in self._told:
            self._told.add("finished")
            self.channel.shutdown_write()

    def _next_piece(self) -> memoryview | None:
        with self._lock:
            while self._outbox and not self._outbox[0]:
                self._outbox.popleft()
            return self._outbox[0] if self._outbox else None

    def _done(self, sent: int) -> None:
        with self._lock:
            if self._outbox:
                self._outbox[0] = self._outbox[0][sent:]

    def _hand_over(self, receive: Callable[[bytes], None], data: bytes) -> None:
        with self._lock:
            self._in_flight += len(data)
        self._tell(self._deliver, receive, data)

    def _deliver(self, receive: Callable[[bytes], None], data: bytes) -> None:
        with self._lock:
            full = self._in_flight >= _IN_FLIGHT
            self._in_flight -= len(data)
        receive(data)
        if full:
            self.poke()

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(getattr(self._receiver, what))

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(callback, *args)


class _Hook(threading.Event):
    """Set by paramiko's thread when something arrived, or when the command has ended."""

    def __init__(self, poke: Callable[[], None]) -> None:
        super().__init__()
        self._poke = poke

    def set(self) -> None:
        super().set()
        self._poke()


class _Window(threading.Condition):
    """Notified by paramiko's thread when more may be sent."""

    def __init__(self, lock: threading.Lock, poke: Callable[[], None]) -> None:
        super().__init__(lock)
        self._poke = poke

    def notify_all(self) -> None:
        super().notify_all()
        self._poke()
