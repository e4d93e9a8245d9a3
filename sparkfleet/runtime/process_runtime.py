"""Ranks as supervised process groups or containers on this process's node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import sparkfleet
from sparkfleet.errors import Cause, NodeError
from sparkfleet.hostfacts.container import Tool
from sparkfleet.remote.atomic_write import make_private, write_atomically
from sparkfleet.remote.local import execute
from sparkfleet.runtime.base import Phase, RankId, RankSpec, RankStatus
from sparkfleet.runtime.containers.container_tools import TOOLS
from sparkfleet.runtime.containers.orphan_containers import OrphanContainers
from sparkfleet.runtime.environment import clean_environment, labels, run_label
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.ports import is_taken
from sparkfleet.runtime.processes import Killed, Process, kill_all, labelled
from sparkfleet.runtime.rank_sweep import PastRuns, RankSweep, SweepLimits
from sparkfleet.runtime.shared_memory import remove_recorded
from sparkfleet.runtime.supervisor_client import (
    SupervisorAnswer,
    SupervisorConnection,
    ask,
    is_restarted,
    last_word,
    parse_answer,
)

_START_S = 10.0
"""Time limit from the start of a supervisor to its first status; it takes 0.1 s on an idle node."""
_POLL_S = 0.02
_STRAY_GRACE_S = 1.0
"""Grace of processes without a supervisor, seconds."""
_STOP_MARGIN_S = 20.0
"""Seconds beyond a rank's grace that its supervisor may need to kill processes."""
_KILLED_S = 60.0
"""Seconds in which a killed supervisor ends, with the rest of its rank: a container tool may take 15 s for each answer."""
_SUPERVISOR = (sys.executable, "-P", "-S", "-m", "sparkfleet.runtime.supervisor")
"""Python without `site`: the supervisor needs only the standard library and this package, and starts 20 ms sooner."""


class ProcessRuntime:
    """Starts, adopts, finds and sweeps the ranks of one fleet on this node.

    Several of them, in any number of processes, may be used beside each other on the same directory.

    Args:
        run_dir: directory of sockets, locks and post-mortems. Created 0700; best on a file system that a reboot empties.
        fleet: the fleet's state id: no two fleets of a node may share it.
        tools: the container tools that are queried for orphans, if they are installed.
    """

    def __init__(self, run_dir: Path, fleet: str, tools: Sequence[Tool] = TOOLS) -> None:
        self._run_dir = run_dir.absolute()
        self._fleet = fleet
        self._orphans = OrphanContainers(fleet, tools)

    async def start(self, spec: RankSpec) -> RankStatus:
        """See `Runtime.start`. Waits for a stopping rank of that id, and then starts it again."""
        if not spec.argv:
            raise NodeError(f"rank {spec.id} has nothing to run: its argv is empty")
        if spec.container and spec.argv[:2] != (spec.container.tool, "run"):
            raise NodeError(
                f"rank {spec.id} is a container: its argv has to begin with {spec.container.tool} run"
            )
        try:
            return await self._start_or_adopt(spec)
        except OSError as error:
            raise NodeError(f"rank {spec.id} cannot be started: {error}") from error

    async def own(self, id_: RankId) -> ProcessRank | None:
        """See `Runtime.own`. A rank that ended without an owner in the last seconds can still be owned, to read its exit."""
        files = self._files(id_)
        connection = await SupervisorConnection.open(files)
        if connection is None:
            return None
        try:
            answer = await connection.ask("own")
        except BaseException:
            await connection.close()
            raise
        if answer is None or answer.status is None:
            await connection.close()
            return None
        return ProcessRank(self, files, connection, answer.status, answer.grace_s)

    async def list(self, *, ended_s: float = 0.0) -> tuple[RankStatus, ...]:
        """See `Runtime.list`. A supervisor that does not answer is left out."""
        present = RankFiles.present(self._run_dir)
        answers = await asyncio.gather(*(ask(files, "status") for files in present), return_exceptions=True)
        alive = {a.status.id: a.status for a in answers if isinstance(a, SupervisorAnswer) and a.status}
        ended = (last_word(files) for files in present if files.ended_within(ended_s))
        return (*alive.values(), *(status for status in ended if status and status.id not in alive))

    async def sweep(self, keep: Container[RankId], before: float | None = None) -> tuple[str, ...]:
        """See `Runtime.sweep`. Supervisors stop their ranks; other processes are killed; files are removed."""
        past = PastRuns(keep, time.monotonic() if before is None else before)
        limits = SweepLimits(stray_s=_STRAY_GRACE_S, stop_s=_STOP_MARGIN_S, start_s=_START_S)
        return await RankSweep(self._run_dir, self._fleet, self._orphans, past, limits).run()

    async def post_mortem(self, id_: RankId) -> RankStatus | None:
        """See `Runtime.post_mortem`."""
        return last_word(self._files(id_))

    async def bury(self, last: RankStatus) -> RankStatus:
        """Ends the rest of a rank whose supervisor is gone, and returns its exit. `last` is its last known status.

        Does nothing if another process is already starting it again, which begins with the same cleanup.
        """
        self._prepare_directory()
        files = self._files(last.id)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with files.locked() as lock:
                if lock is not None:
                    return await self._bury_locked(files, last)
            if await is_restarted(files, last):
                break
            await asyncio.sleep(_POLL_S)
        return _lost(last, Killed())

    async def kill(self, id_: RankId) -> None:
        """Kills all processes of a rank, including its supervisor: for a supervisor that hangs."""
        await kill_all(lambda: self._carriers(id_), grace_s=0)

    async def _start_or_adopt(self, spec: RankSpec) -> RankStatus:
        self._prepare_directory()
        files = self._files(spec.id)
        deadline = time.monotonic() + _START_S + spec.grace_s
        while time.monotonic() < deadline:
            with files.locked() as lock:
                if lock is not None:
                    await self._kill_strays(spec.id)
                    files.clear()
                    _require_free_port(spec)
                    return await self._launch(spec, files, lock)
            if running := await _adoptable(spec, files):
                return running
            await asyncio.sleep(_POLL_S)
        raise NodeError(
            f"rank {spec.id} cannot be started: another supervisor of it neither answers nor ends",
            do=f"list the processes that hold its lock: fuser -v {files.lock}",
        )

    async def _bury_locked(self, files: RankFiles, last: RankStatus) -> RankStatus:
        found = await self.post_mortem(last.id)
        if found and found.started_at == last.started_at:
            return found
        status = _lost(last, await self._kill_strays(last.id))
        files.clear()
        answer = {"ok": True, "grace_s": 0.0, "status": status.model_dump(mode="json")}
        with suppress(OSError):
            write_atomically(files.last, json.dumps(answer).encode())
        return status

    async def _launch(self, spec: RankSpec, files: RankFiles, lock: int) -> RankStatus:
        for file in spec.files:
            mode = 0o700 if file.executable else 0o600
            await asyncio.to_thread(write_atomically, Path(file.path), file.text.encode(), mode=mode)
        started_at = time.monotonic()
        write_atomically(files.spec, json.dumps(self._order(spec, files, started_at)).encode())
        argv = (*_SUPERVISOR, str(files.spec), str(lock))
        try:
            completed = await execute(
                argv, env=self._environment(spec, started_at), timeout_s=_START_S, pass_fds=(lock,)
            )
        finally:
            files.spec.unlink(missing_ok=True)
        if not completed.stdout:  # not the exit code: a starter that ignores SIGCHLD cannot know it
            raise NodeError(
                f"the supervisor of rank {spec.id} did not start",
                means=completed.stderr.strip().rpartition("\n")[2],
            )
        status = parse_answer(files.name, completed.stdout.encode()).status
        assert status, "a supervisor's first answer is a status"
        return status

    def _order(self, spec: RankSpec, files: RankFiles, started_at: float) -> dict[str, object]:
        order = spec.model_dump(mode="json", exclude={"host", "files", "declared_port"})
        known = {
            "fleet": self._fleet,
            "name": files.name,
            "rank": str(spec.id),
            "digest": spec.digest,
            "started_at": started_at,
        }
        forward = order["forward"] and {**order["forward"], "port": spec.port}
        return {**order, **known, "forward": forward, "log_path": os.path.abspath(spec.log_path)}

    def _environment(self, spec: RankSpec, started_at: float) -> dict[str, str]:
        """Environment of the supervisor, with the labels: they find one whose run directory was lost."""
        root = str(Path(sparkfleet.__file__).parent.parent)
        own = labels(self._fleet, str(spec.id)) | run_label(started_at)
        return clean_environment(os.environ) | own | {"PYTHONPATH": root}

    async def _kill_strays(self, id_: RankId) -> Killed:
        removed = await self._orphans.remove(lambda one, _: str(one) == str(id_), grace_s=_STRAY_GRACE_S)
        killed = await kill_all(lambda: self._carriers(id_), grace_s=_STRAY_GRACE_S)
        remove_recorded(self._files(id_).shared)
        return Killed(removed.gone + killed.gone, removed.survivors + killed.survivors)

    def _carriers(self, id_: RankId) -> Iterable[Process]:
        return labelled(labels(self._fleet, str(id_)))

    def _files(self, id_: RankId) -> RankFiles:
        return RankFiles.of(self._run_dir, str(id_))

    def _prepare_directory(self) -> None:
        try:
            make_private(self._run_dir)
            self._run_dir.chmod(0o700)
        except OSError as error:
            raise NodeError(
                f"the run directory {self._run_dir} cannot be used: {error}",
                means="Ranks are controlled through sockets in it, so it must be this user's alone.",
            ) from error


class ProcessRank:
    """A rank that this process owns, through an open connection to its supervisor."""

    def __init__(
        self,
        runtime: ProcessRuntime,
        files: RankFiles,
        connection: SupervisorConnection,
        first: RankStatus,
        grace_s: float,
    ) -> None:
        self._runtime = runtime
        self._files = files
        self._connection = connection
        self._last = first
        self._grace_s = grace_s
        self._end = asyncio.create_task(self._watch())

    async def status(self) -> RankStatus:
        """See `Rank.status`. After its end: its exit."""
        if self._end.done():
            return await self.wait()
        answer = await ask(self._files, "status")
        if answer is None or answer.status is None:
            raise NodeError(f"the supervisor of rank {self._last.id} is gone")
        return answer.status

    async def wait(self) -> RankStatus:
        """See `Rank.wait`. No process of the rank is left when it returns. Raises NodeError after `close`."""
        try:
            return await asyncio.shield(self._end)
        except asyncio.CancelledError:
            if self._end.cancelled():
                raise NodeError(f"rank {self._last.id} was released") from None
            raise

    async def stop(self) -> RankStatus:
        """See `Rank.stop`."""
        if not self._end.done():
            self._connection.send("stop")
        try:
            async with asyncio.timeout(self._grace_s + _STOP_MARGIN_S):
                return await self.wait()
        except TimeoutError:
            await self._runtime.kill(self._last.id)
        try:
            async with asyncio.timeout(_KILLED_S):
                return await self.wait()
        except TimeoutError:
            raise NodeError(
                f"the supervisor of rank {self._last.id} does not end, not even by SIGKILL",
                means="It waits in the kernel, for a driver or a disk.",
                do="Run `sparkfleet doctor` to check the node.",
            ) from None

    async def close(self) -> None:
        """See `Rank.close`."""
        self._end.cancel()
        await asyncio.wait([self._end])
        await self._connection.close()

    async def _watch(self) -> RankStatus:
        """Waits for the end, the only message without a request, or for the end of the supervisor."""
        answer = None if self._last.phase is Phase.EXITED else await self._connection.receive()
        await self._connection.close()
        if self._last.phase is Phase.EXITED:
            return self._last
        if answer and answer.status:
            return answer.status
        return await self._runtime.bury(self._last)


def _require_free_port(spec: RankSpec) -> None:
    """Raises NodeError if another program listens on the declared port: it would answer the rank's health checks."""
    port = spec.declared_port
    if port is not None and is_taken(port):
        raise NodeError(
            f"port {port} of 127.0.0.1, which {spec.id.deployment} declares, is taken by another program",
            means="That program would get its requests, so it was not started.",
            do=f"Set another `port` in the deployment, or end the program: `ss -ltnp 'sport = :{port}'` lists it.",
            because=Cause.PORT,
        )


async def _adoptable(spec: RankSpec, files: RankFiles) -> RankStatus | None:
    """Status of an already running rank; None if it is starting or stopping."""
    answer = await ask(files, "status")
    status = answer.status if answer else None
    if status is None or status.phase is Phase.STOPPING:
        return None
    if status.phase is Phase.EXITED:
        await ask(files, "stop")  # its supervisor stays for a while to report the exit
        return None
    if status.digest != spec.digest:
        raise NodeError(
            f"rank {spec.id} already runs, with another command (digest {status.digest}, not {spec.digest})",
            do="stop it first, or start the new one under the next generation",
        )
    return status


def _lost(last: RankStatus, killed: Killed) -> RankStatus:
    reason = "its supervisor was killed, and the engine with it"
    if killed.gone:
        reason += f"; also killed: {', '.join(killed.gone)}"
    if killed.survivors:
        reason += f"; could not be killed: {', '.join(killed.survivors)}"
    update = {"phase": Phase.EXITED, "exit_code": -signal.SIGKILL, "reason": reason, "owned": False}
    return last.model_copy(update=update)
