"""Client of a supervisor's socket: one request per connection, and the connection that holds the lease."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import dataclass

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import RankStatus
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.specs.fields import quote

_ANSWER_BYTES = 1 << 20
_ANSWER_S = 5.0


@dataclass(frozen=True)
class SupervisorAnswer:
    """Answer of a supervisor."""

    status: RankStatus | None
    """None if it refused."""
    grace_s: float = 0.0
    """Seconds from SIGTERM to SIGKILL of the rank."""


class SupervisorConnection:
    """An open connection to a supervisor."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name = name
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, files: RankFiles) -> SupervisorConnection | None:
        """A new connection; None if no supervisor listens. Raises NodeError if it does not accept."""
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            with files.address() as path:
                link.connect(path)  # never waits: a unix socket connects at once or not at all
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            return None
        except OSError as error:
            link.close()
            raise NodeError(f"the supervisor of {files.name} cannot be reached: {error}") from error
        reader, writer = await asyncio.open_unix_connection(sock=link, limit=_ANSWER_BYTES)
        return cls(files.name, reader, writer)

    def send(self, operation: str) -> None:
        """Sends a request; `receive` returns the answer."""
        self._writer.write(json.dumps({"op": operation}).encode() + b"\n")

    async def ask(self, operation: str, timeout_s: float = _ANSWER_S) -> SupervisorAnswer | None:
        """Sends a request and waits for the answer; None if the supervisor is gone. Raises NodeError after a time limit."""
        self.send(operation)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the answer.
            async with asyncio.timeout(timeout_s):
                return await self.receive()
        except TimeoutError:
            raise NodeError(
                f"the supervisor of {self._name} did not answer within {timeout_s:g} s",
                means="The process exists but does not run: it was suspended, or the node is out of memory.",
            ) from None

    async def receive(self) -> SupervisorAnswer | None:
        """The next answer; None if the supervisor is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return parse_answer(self._name, line) if line.endswith(b"\n") else None

    async def close(self) -> None:
        """Closes the connection, and releases its lease if it held one."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def ask(files: RankFiles, operation: str, *, timeout_s: float = _ANSWER_S) -> SupervisorAnswer | None:
    """The answer to one request; None if there is no supervisor. Raises NodeError if it does not answer in time."""
    connection = await SupervisorConnection.open(files)
    if connection is None:
        return None
    try:
        return await connection.ask(operation, timeout_s)
    finally:
        await connection.close()


async def is_restarted(files: RankFiles, last: RankStatus) -> bool:
    """True if another run of the rank answers than this one. Raises NodeError as `ask`."""
    answer = await ask(files, "status")
    return bool(answer and answer.status and answer.status.started_at != last.started_at)


def last_word(files: RankFiles) -> RankStatus | None:
    """Exit of the rank's last run; None without a record."""
    try:
        return parse_answer(files.name, files.last.read_bytes()).status
    except (OSError, NodeError):
        return None


def parse_answer(name: str, line: bytes) -> SupervisorAnswer:
    """Parses one line of a supervisor. Raises NodeError if it is not valid."""
    try:
        content = json.loads(line)
        if not content["ok"]:
            return SupervisorAnswer(None)
        status = RankStatus.model_validate_json(json.dumps(content["status"]))
        return SupervisorAnswer(status, float(content["grace_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NodeError(
            f"the supervisor of {name} returned an answer that cannot be read: {quote(line.decode(errors='replace'))}"
        ) from error
