"""Finds and ends processes by a label in their environment, and only those. Reads Linux's /proc. Stdlib only.

A label is an environment variable. Children inherit it, through fork, exec, setsid and the death of their parents, so it
finds processes that a process group or a parent's pid no longer does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

_KILL_ROUND_S = 1.0
"""Seconds to wait for killed processes before the next search for new ones."""
_COMMAND_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Process:
    """One process. Two values are equal if they mean the same process, even if its parent has died or its pid is reused."""

    pid: int
    started: int
    """Clock ticks since boot. Together with `pid` it names a process for good."""
    parent: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)
    name: str = field(compare=False)

    @property
    def words(self) -> tuple[bytes, ...]:
        """The command line, word for word; one empty word if that cannot be read."""
        return tuple(_read(self.pid, "cmdline").removesuffix(b"\0").split(b"\0"))

    @property
    def command(self) -> str:
        """The command line, shortened; its name if that cannot be read."""
        line = b" ".join(self.words).strip().decode(errors="replace")
        return line[:_COMMAND_LENGTH] or self.name


@dataclass(frozen=True, slots=True)
class Killed:
    """Processes that `kill_all` ended, as `pid 123 (command line)`."""

    gone: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    """Processes that did not die of SIGKILL in time: they wait in the kernel, for a driver or a disk."""


def processes() -> list[Process]:
    """All live processes, without zombies."""
    found = (process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [p for p in found if p is not None]


def process(pid: int) -> Process | None:
    """One live process, or None."""
    head, _, tail = _read(pid, "stat").decode(errors="replace").rpartition(")")
    if not tail:
        return None
    fields = tail.split()  # from field 3 of proc_pid_stat(5) on: the name before it may contain any character
    state, threads = fields[0], int(fields[17])
    if state in "ZX" and threads < 2:  # a process can run on after its main thread has ended
        return None
    parent, group, session, started = (int(fields[i]) for i in (1, 2, 3, 19))
    return Process(pid, started, parent, group, session, head.partition("(")[2])


def variable(pid: int, name: str) -> str | None:
    """An environment variable from the start of a process; None also if that may not be read."""
    return variables(pid).get(name)


def variables(pid: int) -> dict[str, str]:
    """The environment from the start of a process, as of one moment; empty also if that may not be read."""
    found: dict[str, str] = {}
    for entry in _read(pid, "environ").split(b"\0"):
        name, is_set, value = entry.partition(b"=")
        if is_set:
            found.setdefault(os.fsdecode(name), value.decode(errors="surrogateescape"))
    return found


def carries(pid: int, labels: Mapping[str, str]) -> bool:
    """True if a process was started with all of `labels` in its environment."""
    environ = b"\0" + _read(pid, "environ") + b"\0"
    return all(b"\0%b=%b\0" % (os.fsencode(k), os.fsencode(v)) in environ for k, v in labels.items())


def labelled(labels: Mapping[str, str]) -> list[Process]:
    """Every live process with all of `labels` in its environment."""
    return [p for p in processes() if carries(p.pid, labels)]


def descendants(pid: int, among: Iterable[Process]) -> list[Process]:
    """Children of `pid`, their children, and so on."""
    children: dict[int, list[Process]] = {}
    for p in among:
        children.setdefault(p.parent, []).append(p)
    found: list[Process] = []
    heads = [pid]
    while heads:
        new = children.pop(heads.pop(), [])
        found += new
        heads += [p.pid for p in new]
    return found


def memory_bytes(among: Iterable[Process]) -> int:
    """Main memory of the processes, bytes: each shared page counted once (PSS), else RSS.

    Reading PSS walks the page tables of a process: call it every few seconds, not every few milliseconds.
    """
    return sum(_pss(p.pid) or _rss(p.pid) for p in among)


async def kill_all(
    find: Callable[[], Iterable[Process]], *, grace_s: float, patience_s: float = 10.0
) -> Killed:
    """Sends SIGTERM, then SIGKILL, to the processes of `find`, until it finds none. Never to this process itself.

    Safe against reused pids: each process is held by a pidfd and compared before it is signalled.

    Args:
        find: returns the current processes; called until it finds none but this one.
        grace_s: seconds between SIGTERM and SIGKILL; 0 for SIGKILL at once.
        patience_s: seconds after which a process that does not die of SIGKILL is given up.
    """
    met: dict[Process, str] = {}
    begun = time.monotonic()
    while found := _others(find):
        met |= {p: f"pid {p.pid} ({p.command})" for p in found if p not in met}
        elapsed = time.monotonic() - begun
        if elapsed > grace_s + patience_s:
            break
        if elapsed < grace_s:
            await signal_all(found, signal.SIGTERM, wait_s=grace_s - elapsed)
        else:
            await signal_all(found, signal.SIGKILL, wait_s=_KILL_ROUND_S)
    gone = tuple(words for p, words in met.items() if p not in found)
    return Killed(gone, tuple(met[p] for p in found))


async def freeze(find: Callable[[], Iterable[Process]], *, patience_s: float = 2.0) -> None:
    """Stops the processes of `find` (SIGSTOP), and returns when all of them are stopped, which is later than the signal.

    Args:
        find: returns the current processes; called until all of them are stopped, because one may fork meanwhile.
        patience_s: seconds after which a process that does not stop (it waits in the kernel) is left to itself.
    """
    deadline = time.monotonic() + patience_s
    while running := [p for p in _others(find) if not is_stopped(p.pid)]:
        await signal_all(running, signal.SIGSTOP, wait_s=0)
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.01)


async def thaw(find: Callable[[], Iterable[Process]]) -> None:
    """Lets stopped processes continue."""
    await signal_all(_others(find), signal.SIGCONT, wait_s=0)


def is_stopped(pid: int) -> bool:
    """True for a process that a signal or a debugger has stopped."""
    _, _, tail = _read(pid, "stat").decode(errors="replace").rpartition(")")
    return tail.split()[:1] in (["T"], ["t"])


async def signal_all(targets: Iterable[Process], number: signal.Signals, *, wait_s: float) -> None:
    """Signals exactly these processes, then waits until all have ended or `wait_s` is over."""
    with ExitStack() as opened:
        handles = []
        for target in targets:
            if (found := _pidfd(target)) is not None:
                opened.callback(os.close, found)
                handles.append(found)
        for handle in handles:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, number)
        if wait_s:
            await _until_ended(handles, wait_s)


def _others(find: Callable[[], Iterable[Process]]) -> list[Process]:
    # Reading /proc is not atomic: a process that forks and ends meanwhile may hide its child, but not twice.
    def look() -> list[Process]:
        return [p for p in find() if p.pid != os.getpid()]

    return look() or look()


def _pidfd(target: Process) -> int | None:
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return None
    with ExitStack() as opened:
        opened.callback(os.close, handle)
        if process(target.pid) != target:  # gone, and its pid may belong to another process by now
            return None
        opened.pop_all()
    return handle


async def _until_ended(handles: list[int], wait_s: float) -> None:
    loop = asyncio.get_running_loop()
    ends = {handle: loop.create_future() for handle in handles}
    for handle, end in ends.items():
        loop.add_reader(handle, _resolve, loop, handle, end)
    try:
        if ends:
            await asyncio.wait(ends.values(), timeout=wait_s)
    finally:
        for handle in handles:
            loop.remove_reader(handle)


def _resolve(loop: asyncio.AbstractEventLoop, handle: int, end: asyncio.Future[None]) -> None:
    loop.remove_reader(handle)  # a pidfd stays readable: the loop would spin until the others have ended
    if not end.done():
        end.set_result(None)


def _pss(pid: int) -> int:
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _rss(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _read(pid: int, what: str) -> bytes:
    """A file of /proc/<pid>; empty if the process is gone or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
