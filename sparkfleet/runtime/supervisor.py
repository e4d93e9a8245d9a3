"""Supervisor: one small process per rank, which runs it, ends it, and reports its exit. Started by `ProcessRuntime`.

    python -m sparkfleet.runtime.supervisor SPEC_FILE LOCK_FD

It outlives its starter, and ends with the rank: when the engine exits (any code), on request, or when the rank had no owner
for the length of its lease. It imports the standard library only, because there is one beside every engine: 17 MB resident,
80 ms from `ProcessRuntime.start` to its first status (two x86 cores, Python 3.11).

No process of the rank stays if one of these dies:

    the engine                       its children are found by descent and by label, and killed; its container is removed
    the owner                        the lease runs out
    this process (SIGKILL)           the engine dies with it (PDEATHSIG), a container does not; the owner sees the socket
                                     close, and kills and removes the rest by label
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sparkfleet.engines.guard import METRICS_TOKEN
from sparkfleet.remote.atomic_write import make_private, write_atomically
from sparkfleet.runtime.containers.container import Container, run_argv
from sparkfleet.runtime.control_socket import Answer, ControlSocket
from sparkfleet.runtime.environment import clean_environment, labels, run_label
from sparkfleet.runtime.exit_codes import KERNEL_KILLED, NOT_EXECUTABLE, NOT_FOUND, meaning
from sparkfleet.runtime.files.kv_pruner import KvPruner
from sparkfleet.runtime.files.rank_output import RankOutput
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.files.ranklog import RankLog
from sparkfleet.runtime.files.spared import spared
from sparkfleet.runtime.forwarder import Forwarder, ForwardOrder
from sparkfleet.runtime.process_tree import Children, set_oom_score
from sparkfleet.runtime.processes import Killed
from sparkfleet.runtime.shared_memory import FIRST_LOOK_S, LOOK_S, SharedMemory

_STRAGGLER_GRACE_S = 1.0
"""Grace of processes that outlive the engine, e.g. Python's resource tracker, which still has shared memory to unlink."""
_LINGER_S = 5.0
"""Seconds for which the exit of a rank that ended by itself without an owner can still be read."""


@dataclass(frozen=True)
class Order:
    """A `RankSpec` as plain data, with facts from the starter."""

    fleet: str
    name: str
    rank: str
    id: dict[str, object]
    digest: str
    started_at: float
    """Seconds of the node's monotonic clock, which orders the ranks of a node: the wall clock may be set back."""
    argv: list[str]
    env: list[list[str]]
    secret_env: list[list[str]]
    prepare: list[str]
    log_path: str
    port: int
    lease_s: float
    grace_s: float
    container: dict[str, str] | None
    """`tool` and `image`, if `argv` runs a container."""
    forward: ForwardOrder | None
    kv_files: dict[str, Any] | None
    """`path` and `limit_bytes` of the KV that the rank keeps on the disk."""

    def secrets(self) -> tuple[str, ...]:
        """Values that the log must not contain."""
        tokens = (self.forward.token, *self.forward.metrics_token.split()) if self.forward else ()
        values = (value.split() if name == METRICS_TOKEN else [value] for name, value in self.secret_env)
        return (*(value for parts in values for value in parts), *tokens)

    @classmethod
    def take(cls, path: Path) -> Order:
        """Reads an order and removes its file, which has secrets."""
        try:
            order = json.loads(path.read_bytes())
            forward = ForwardOrder(**order["forward"]) if order["forward"] else None
            return cls(**{**order, "forward": forward})
        finally:
            path.unlink()


class Supervisor:
    """The life of one rank.

    Args:
        order: the rank's specification.
        files: paths of its socket and its post-mortem.
        ready: a descriptor that receives the first status and is then closed.
    """

    def __init__(self, order: Order, files: RankFiles, ready: int) -> None:
        self._order = order
        self._files = files
        self._ready = ready
        self._log = RankLog(order.log_path, secrets=order.secrets())
        self._control = ControlSocket(self.answer, self.stop, order.lease_s)
        self._stopped = asyncio.Event()
        self._over = False  # true once it ended by itself: there is nothing to stop
        self._phase = "preparing" if order.prepare else "running"
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._reason = ""
        self._ooms = (_oom_kills(),) * 2
        """Processes that the kernel had killed for lack of memory, at the last look but one and at the last."""
        self._container: Container | None = None
        self._shared = SharedMemory(files.shared)
        self._forwarder = Forwarder(order.forward) if order.forward else None
        self._kv = KvPruner(**order.kv_files) if order.kv_files else None

    async def run(self) -> None:
        """Runs the rank to its end, and reports its exit."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop, f"its supervisor got {number.name}")
        await self._control.open(_listen(self._files))
        try:
            with spared(self._files.run_dir):
                make_private(Path(self._order.log_path).parent)
                await self._live(RankOutput(self._log))
        finally:
            if self._forwarder:
                await self._forwarder.close()
            if self._kv:
                self._kv.end()
            self._log.close()
            self._files.socket.unlink(missing_ok=True)

    def stop(self, why: str) -> None:
        """Ends the rank; the first reason is the one that is reported."""
        if not self._over and not self._stopped.is_set():
            self._reason = f"stopped: {why}"
            self._phase = "stopping"
            self._control.refuse_owners()
            self._stopped.set()

    def answer(self) -> Answer:
        """Status of the rank. Never contains values of `env` or `secret_env`."""
        status: Answer = {
            "id": self._order.id,
            "digest": self._order.digest,
            "phase": self._phase,
            "port": self._order.port,
            "pid": self._pid,
            "started_at": self._order.started_at,
            "exit_code": self._exit_code,
            "reason": self._reason,
            "owned": self._control.owned,
        }
        return {"ok": True, "grace_s": self._order.grace_s, "status": status}

    async def _live(self, output: RankOutput) -> None:
        children = self._children(output.writer)
        code, killed = await self._begin_kv(), Killed()
        steps = [("preparing", self._order.prepare), ("running", self._order.argv)]
        looking = [asyncio.ensure_future(self._look_at_memory(children))]
        if self._kv:
            looking.append(asyncio.ensure_future(self._kv.run_forever(self._note)))
        for phase, argv in steps:
            if argv and code == 0 and not self._stopped.is_set():
                code, killed = await self._step(children, phase, argv)
        for look in looking:
            look.cancel()
        if self._forwarder:
            await self._forwarder.close()
        output.drain()
        if removed := self._shared.remove():
            self._note(f"removed its shared memory: {', '.join(removed)}")
        self._conclude(code, killed)
        self._announce()
        await self._control.farewell(_LINGER_S if self._over else 0)

    async def _look_at_memory(self, children: Children) -> None:
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            self._shared.look(one.pid for one in children.find())
            self._ooms = (self._ooms[1], _oom_kills())
            pause_s = min(2 * pause_s, LOOK_S)

    async def _begin_kv(self) -> int:
        """Makes the directory of KV on the disk; an exit code other than 0 if that cannot be made."""
        try:
            if self._kv:
                await asyncio.to_thread(self._kv.begin)
        except OSError as error:
            return self._cannot_start(("its directory for KV on the disk",), error)
        return 0

    async def _step(self, children: Children, phase: str, argv: Sequence[str]) -> tuple[int, Killed]:
        """Runs one command to its end, or to a stop."""
        self._phase = phase
        self._note(f"{phase}: {shlex.join(argv)}")
        if phase == "running" and self._forwarder:
            try:
                await self._forwarder.open()
            except OSError as error:
                return self._cannot_start(("its forwarder",), error), Killed()
        if phase == "running" and self._order.container:
            argv = run_argv(argv, self._files.container, self._order.started_at)
            self._container = Container(children, self._files.container, **self._order.container)
        try:
            pid, end = children.spawn(argv)
        except (OSError, ValueError) as error:
            return self._cannot_start(argv, error), Killed()
        self._pid = pid if phase == "running" else None
        self._announce()
        killed = await self._until_nothing_is_left(children, end)
        return end.result() if end.done() else -signal.SIGKILL, killed

    async def _until_nothing_is_left(self, children: Children, end: asyncio.Future[int]) -> Killed:
        stop = asyncio.ensure_future(self._stopped.wait())
        either: tuple[asyncio.Future[Any], ...] = (end, stop)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        self._shared.look(one.pid for one in children.find())
        self._over = end.done() and (self._phase == "running" or end.result() != 0)
        if not end.done():
            await self._end(children, end)
        grace_s = min(_STRAGGLER_GRACE_S, self._order.grace_s)
        if self._container:
            if not end.done():
                await children.clear(0)  # first the client: it might still create the container
            await self._container.bury()
        return await children.clear(grace_s if end.done() else 0)

    async def _end(self, children: Children, end: asyncio.Future[int]) -> None:
        if self._container:
            await self._container.stop(end, self._order.grace_s)
        else:
            await children.terminate()
            await asyncio.wait([end], timeout=self._order.grace_s)

    def _cannot_start(self, argv: Sequence[str], error: Exception) -> int:
        self._over = True
        self._reason = f"{argv[0]} cannot be started: {error}"
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE

    def _conclude(self, code: int, killed: Killed) -> None:
        code, how = self._how_it_ended(code)
        self._reason = "; ".join((self._reason or how, *_after(killed)))
        self._note(self._reason)
        if self._over and (tail := self._log.tail()):
            self._reason += f"\nlast lines of {self._order.log_path}:\n{tail}"
        self._exit_code = code
        self._phase = "exited"
        with suppress(OSError):
            write_atomically(self._files.last, json.dumps(self.answer()).encode())

    def _how_it_ended(self, code: int) -> tuple[int, str]:
        ooms = _oom_kills() - self._ooms[0]
        hint = f" (the kernel killed {ooms} {KERNEL_KILLED})" if ooms > 0 else ""
        if self._container:
            code, how = self._container.ending(code, self._log.tail())
            return code, how + hint
        program = "its preparation" if self._phase == "preparing" else "the engine"
        return code, f"{program} {meaning(code)}{hint}"

    def _children(self, writer: int) -> Children:
        """The starter of the rank's processes, which write to this pipe."""
        order = self._order
        env = clean_environment(os.environ) | dict(order.env) | dict(order.secret_env)
        own = labels(order.fleet, order.rank) | run_label(order.started_at)
        return Children(env, own, writer, str(Path(order.log_path).parent))

    def _note(self, words: str) -> None:
        """Writes a line of the supervisor's own to the log."""
        self._log.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}")

    def _announce(self) -> None:
        """Sends the first status to the starter, once, and closes the descriptors that came from it."""
        if self._ready < 0:
            return
        with suppress(BrokenPipeError):  # the starter was interrupted: the lease decides
            os.write(self._ready, json.dumps(self.answer()).encode())
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        with suppress(OSError):  # a defect of the supervisor should leave a trace
            os.dup2(os.open(self._order.log_path, os.O_WRONLY | os.O_APPEND), 2)
        os.close(self._ready)
        self._ready = -1


def _after(killed: Killed) -> list[str]:
    return [f"could not be killed: {', '.join(killed.survivors)}"] if killed.survivors else []


def _listen(files: RankFiles) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with files.address() as path:
        listener.bind(path)
    files.socket.chmod(0o600)
    return listener


def _oom_kills() -> int:
    """Number of processes that the kernel has killed on this node for lack of memory since boot."""
    with suppress(OSError, ValueError):
        counters = Path("/proc/vmstat").read_text().split()
        return int(counters[counters.index("oom_kill") + 1])
    return 0


def _daemonise() -> int:
    """Leaves the starter's session; the parent prints the text that is written to the returned descriptor."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        os.chdir("/")
        return writer
    os.close(writer)
    with os.fdopen(reader, "rb") as first:
        status = first.read()  # until the child has announced itself, or is gone
    os.write(1, status)
    os._exit(0 if status else 1)


def _reset_signals() -> None:
    """Restores the signals that the starter ignored or blocked, so that the engine receives them."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # the C library keeps two for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(spec_file: str, lock_fd: str) -> NoReturn:
    """Supervises the rank that `spec_file` describes. `lock_fd` stays open, which holds the rank's lock."""
    path = Path(spec_file).absolute()
    order = Order.take(path)
    os.set_inheritable(int(lock_fd), False)
    ready = _daemonise()
    _reset_signals()
    set_oom_score(0)
    asyncio.run(Supervisor(order, RankFiles(path.parent, order.name), ready).run())
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
