"""Carries a command to a node, separates its output from noise, and kills it.

The line for sshd is a short constant, so that every login shell parses it alike (csh and fish have their own quoting). The
command itself (variables, then `exec` of the quoted argv) follows as the first bytes of stdin, where no other user of the
node can read it, and /bin/sh runs it. The braces around it make a truncated command a syntax error. The command first
prints a random token on both outputs: anything before it is noise of login scripts, and the numbers after it are the
process and group to kill. If `exec` fails, the shell prints the token as its last line.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sparkfleet.errors import NodeError
from sparkfleet.remote.bounded_output import OUTPUT_BYTES, Output
from sparkfleet.remote.channel import not_found
from sparkfleet.remote.ssh.connection import SshConnection
from sparkfleet.specs.fields import quote

ANSWER_S = 10.0
"""Seconds for the node to open a channel on an open connection."""
DRAIN_S = 1.0
"""Seconds that a background child may hold the output open after the command has ended."""
_NOISE_BYTES = 1 << 16
"""Bytes kept of the output of login scripts before the command's token."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SCRIPT = """{{
trap 'printf "%s %d\\n" {token} "$?" >&2' EXIT
read -r _sf_pid _sf_name _sf_state _sf_parent _sf_group _sf_rest </proc/$$/stat
printf '%s %d %d\\n' {token} "$_sf_pid" "$_sf_group"
echo {token} >&2
{exports}exec {argv}
}}
"""


class Command:
    """A command in progress; receives its outputs (see `Receiver`).

    Args:
        env: variables on top of the node's own.
        limit: bytes that are kept of stdout.
        on_output: called with stdout as it arrives.

    Raises:
        NodeError: the command is invalid.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        limit: int = OUTPUT_BYTES,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        token = secrets.token_hex(8)
        self.script = _script(token, argv, env or {})
        self.program = argv[0]
        self.stdout, self.stderr = Output(limit), Output()
        self._token = token
        self._on_output = on_output
        self._out, self._err = _Announced(token), _Announced(token)
        self._begun, self._over, self._silent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._error: Exception | None = None
        self._exit_code: int | None = None
        self._is_ended = False

    @property
    def line(self) -> str:
        """Command for sshd. The first bytes of stdin are `script`."""
        return f"""exec /bin/sh -c 'eval "$(head -c "$1")"' sparkfleet {len(self.script)}"""

    @property
    def has_begun(self) -> bool:
        """True if the command runs, or ran, on the node."""
        return bool(self._out.words)

    @property
    def is_ended(self) -> bool:
        """True if the command has ended, or its channel has: nothing can be killed any more."""
        return self._is_ended

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        self._error = self._error or error
        self._over.set()

    async def finished(self, connection: SshConnection) -> int:
        """Wait for the command's end and return its exit code. Raises NodeError if it did not run to its end."""
        await self._over.wait()
        if self._error is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._silent.wait()
        if self._error is not None:
            raise self._error
        if self._exit_code is None and not connection.is_open:
            raise connection.lost
        if self._exit_code is None or not self.has_begun:
            raise self._not_begun(connection)
        self._check_program(self._exit_code)
        return self._exit_code

    async def kill(self, connection: SshConnection) -> None:
        """Kill its process group on the node and wait until `kill` has run. Raises NodeError."""
        await self._begun.wait()
        if self._is_ended:
            return
        pid, group = self._out.words
        target = f"-{pid}" if pid == group else pid
        killer = _Quiet()
        line = f"exec /bin/sh -c 'kill -s KILL -- {target}'"
        async with connection.kills:
            stream = await connection.command(line, killer, timeout_s=ANSWER_S)
            try:
                await killer.over.wait()
            finally:
                stream.close()

    async def ended(self) -> None:
        """Wait until the node reports its end."""
        while not self._is_ended:
            self._over.clear()
            await self._over.wait()

    def received(self, data: bytes) -> None:
        """See `Receiver`."""
        payload = self._out.feed(data)
        if self._out.words:
            self._begun.set()
        if not payload:
            return
        self.stdout.add(payload)
        if self._on_output is not None and self._error is None:
            try:
                self._on_output(payload)
            except Exception as error:  # the caller's: it ends the command, and goes back to the caller
                self.fail(error)

    def received_stderr(self, data: bytes) -> None:
        """See `Receiver`."""
        self.stderr.add(self._err.feed(data))

    def drained(self) -> None:
        """Ignored."""

    def eof(self) -> None:
        """See `Receiver`."""
        self._silent.set()

    def exited(self, exit_code: int) -> None:
        """See `Receiver`."""
        self._exit_code = exit_code
        self._end()

    def closed(self) -> None:
        """See `Receiver`."""
        self._silent.set()
        self._end()

    def _end(self) -> None:
        self._is_ended = True
        self._begun.set()  # or never will
        self._over.set()

    def _check_program(self, exit_code: int) -> None:
        stderr = self.stderr.content
        if exit_code not in (126, 127) or not stderr.endswith(f"{self._token} {exit_code}\n".encode()):
            return
        if exit_code == 127:
            raise not_found(self.program)
        reason = stderr.decode(errors="replace").rpartition(self._token)[0].strip().rpartition(": ")[2]
        raise NodeError(f"{self.program} cannot be run: {reason}")

    def _not_begun(self, connection: SshConnection) -> NodeError:
        noise = (self._out.noise + self._err.noise).decode(errors="replace").strip()
        return NodeError(
            f"{connection.name}: the command did not begin: {noise[-400:] or 'no output'}",
            means="The user's login shell does not run commands, or a login script ends the session.",
            do="Try `ssh NODE true`. If it fails: set a login shell (`chsh`), or fix the login script.",
        )


class _Announced:
    """Output after the announcement, a line that begins with the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.noise = b""
        self.words: list[str] = []
        self._is_on = False

    def feed(self, data: bytes) -> bytes:
        """Part of the output that belongs to the command."""
        if self._is_on:
            return data
        noise, token, rest = (self.noise + data).partition(self._token)
        line, newline, payload = rest.partition(b"\n")
        if not (token and newline):
            self.noise = (self.noise + data)[-_NOISE_BYTES:]
            return b""
        self.noise, self.words, self._is_on = noise, line.decode("ascii", "replace").split(), True
        return payload


class _Quiet:
    """Ignores all output of a command and waits for the end of its session."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def received(self, data: bytes) -> None:
        """Ignored, as are the other events."""

    received_stderr = received

    def drained(self) -> None:
        """Ignored."""

    eof = drained  # ignored

    def exited(self, exit_code: int) -> None:
        """Ignored."""

    def closed(self) -> None:
        self.over.set()


def _script(token: str, argv: Sequence[str], env: Mapping[str, str]) -> bytes:
    if not argv:
        raise NodeError("the command is empty")
    if any("\0" in word for word in (*argv, *env.values())):
        raise NodeError(f"{quote(argv[0])} cannot be run: embedded null byte")
    if argv[0].startswith("-"):  # some shells read it as an option of `exec`
        raise not_found(argv[0])
    for name in env:
        if not _NAME.fullmatch(name):
            raise NodeError(f"{argv[0]} cannot be run: {quote(name)} is not a variable name")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    text = _SCRIPT.format(token=token, exports=exports, argv=shlex.join(argv))
    return text.encode(errors="surrogateescape")
