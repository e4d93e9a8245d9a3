"""Extends paramiko's transport with events per channel: end of data, exit code, close.

Paramiko has two gaps here. It does not support `exit-signal` (RFC 4254, 6.10). And it answers a channel's CLOSE from its
own thread while another thread may be about to send on that channel: that data then follows the answer, for a channel that
no longer exists, and OpenSSH ends the connection with all its other commands.

Both are fixed at paramiko's public hook for packets (`packetizer_class`): every packet for a channel wakes the thread that
serves it, and only that thread handles a CLOSE: it closes the channel when it has nothing left to send.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar, cast

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_FAILURE,
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_CHANNEL_REQUEST,
)
from paramiko.packet import Packetizer

T = TypeVar("T")

_PROTOCOL_LOG = "sparkfleet.remote.ssh.channel.protocol"
# Paramiko logs tracebacks of errors that are raised here with better messages. For its log, set another level.
logging.getLogger(_PROTOCOL_LOG).setLevel(logging.CRITICAL)

_WAKE_S = 1.0
"""Interval in which paramiko's thread checks for its end and for keepalives. Its default of 0.1 s costs a fleet of idle
connections some percent of a core."""


class Arrivals:
    """Events of one channel, besides its data. Written by paramiko's thread.

    Attributes:
        news: set when anything has arrived, data and room to send included.
        eof: the other side sends no more data.
        closed: the other side has closed the channel, or the connection has ended. Nothing more arrives.
        exit_code: of its command, negative if a signal ended it; None until it is known.
    """

    def __init__(self) -> None:
        self.news = threading.Event()
        self.eof = self.closed = False
        self.exit_code: int | None = None

    def close(self) -> None:
        """Record the end."""
        self.closed = True
        self.news.set()


class Packets(Packetizer):
    """Reads and writes packets as paramiko does, and keeps the `Arrivals` of every opened channel."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._arrivals: dict[int, Arrivals] = {}
        self._handed_over: Arrivals | None = None

    def of(self, channel: paramiko.Channel) -> Arrivals:
        """Events of a channel that has just been opened. Call `forget` at its end."""
        return self._arrivals[channel.get_id()]

    def forget(self, channel: paramiko.Channel) -> None:
        """Leave the channel to paramiko, its CLOSE included."""
        self._arrivals.pop(channel.get_id(), None)

    def read_message(self) -> tuple[int, paramiko.Message]:
        """See `Packetizer`. Called for the next packet when paramiko has handled the previous one."""
        if self._handed_over is not None:
            self._handed_over.news.set()
        while True:
            kind, message = super().read_message()
            self._handed_over = self._note(kind, message)
            if kind != MSG_CHANNEL_CLOSE or self._handed_over is None:
                return kind, message
            self._handed_over.close()

    def close(self) -> None:
        """See `Packetizer`. Called when the connection ends, for any reason."""
        super().close()
        for arrivals in list(self._arrivals.values()):
            arrivals.close()

    def _note(self, kind: int, message: paramiko.Message) -> Arrivals | None:
        """Record a message in the events of its channel and return them; None if it has no channel."""
        if not MSG_CHANNEL_OPEN_SUCCESS <= kind <= MSG_CHANNEL_FAILURE:
            return None
        number = message.get_int()
        if kind == MSG_CHANNEL_OPEN_SUCCESS:
            self._arrivals[number] = Arrivals()
        arrivals = self._arrivals.get(number)
        if arrivals is not None and kind == MSG_CHANNEL_EOF:
            arrivals.eof = True
        if arrivals is not None and kind == MSG_CHANNEL_REQUEST:
            arrivals.exit_code = _exit_code(message, arrivals.exit_code)
        message.rewind()
        return arrivals


class Transport(paramiko.Transport):
    """Paramiko's transport with access to its packets; wakes less often while it is idle.

    Args:
        sock: connected; closed by `end`.
        key_types: types of host keys, in order of preference.
    """

    def __init__(self, sock: socket.socket | paramiko.Channel, key_types: Sequence[str]) -> None:
        wire = cast(socket.socket, sock)  # to paramiko, a channel is a socket, too
        self.packets = Packets(wire)
        super().__init__(sock, packetizer_class=lambda _: self.packets)  # type: ignore[arg-type] # it is called only
        self._wire = wire
        self._reason: Exception | None = None
        wire.settimeout(_WAKE_S)
        self.set_log_channel(_PROTOCOL_LOG)
        self.get_security_options().key_types = tuple(key_types)

    @property
    def reason(self) -> Exception | None:
        """Error that ended the connection, if it is known. Paramiko returns it only once, so it is kept here."""
        self._reason = self.get_exception() or self._reason
        return self._reason

    def end(self) -> None:
        """Close it and wait for its thread. Calls that wait for the other side return."""
        with suppress(OSError):
            if isinstance(self._wire, socket.socket):
                self._wire.shutdown(socket.SHUT_RDWR)
        self.close()
        self._wire.close()
        if self.ident is not None and self is not threading.current_thread():
            self.join(2 * _WAKE_S)


def in_thread(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a blocking call in its own thread. If it is cancelled, the thread runs on, and nothing waits for it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a cancellation cancels only the caller's wait

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name=f"sparkfleet-ssh-{name}", daemon=True).start()
    return asyncio.wrap_future(done)


def _exit_code(message: paramiko.Message, before: int | None) -> int | None:
    request = message.get_text()
    message.get_boolean()
    if request == "exit-status":
        return message.get_int()
    if request == "exit-signal":
        return -_signal_number(message.get_text())
    return before


def _signal_number(name: str) -> int:
    """Number of KILL, TERM, ...; unknown names count as SIGKILL."""
    return int(getattr(signal, f"SIG{name}", signal.SIGKILL))
