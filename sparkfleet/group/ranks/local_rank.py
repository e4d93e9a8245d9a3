"""A rank on the node that this process runs on: adopted or started, and held through its supervisor."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sparkfleet.errors import Cause, EngineError, NodeError, SparkfleetError
from sparkfleet.group.exposed_sockets import Listening, sockets_of
from sparkfleet.group.group_launch import ALONE, GroupLaunch, launch_digest
from sparkfleet.group.mpi_keys import write_keys
from sparkfleet.group.ranks.load_guard import LoadGuard
from sparkfleet.group.ranks.rank_node import (
    available_memory,
    container_of,
    drop_page_cache,
    prepare_cache,
    spec_here,
)
from sparkfleet.group.ranks.rank_spec import Ports, keys_dir
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.base import (
    ADOPTABLE,
    Rank,
    RankId,
    RankSpec,
    RankStatus,
    Runtime,
)
from sparkfleet.runtime.containers.halted_container import halted_words
from sparkfleet.runtime.environment import labels
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.runtime.ports import free_port
from sparkfleet.runtime.processes import descendants, labelled, process, processes
from sparkfleet.specs.timeouts import GIVEN_BACK_S

T = TypeVar("T")

OWNED_S = 20.0
"""Seconds for which a holder that should be gone may still hold a rank."""
STOPPED_S = 75.0
"""Seconds for which a supervisor may not answer before its rank counts as lost: it may have been stopped for a minute, with
an engine beside it that serves."""
STOPPED_LOOK_S = 0.5
PORT_S = 20.0
"""Seconds beyond a drain for which a declared port may be taken: the replaced engine has 10 s to end, then it is killed."""
DAEMON_S = 60.0
"""Seconds for which a container tool may not work before a start fails."""
AGAIN_S = 1.0
TAIL_BYTES = 64 << 10
SOCKETS_S = 5.0
_BEGAN = re.compile(r"^\[sparkfleet\] .{1,40}? (?:preparing|running): .*\n?", re.MULTILINE)
"""Line that a supervisor writes at a start: the log before it belongs to an earlier start."""


class LocalRank:
    """A rank on the node that this process runs on.

    Args:
        paths: the fleet's directories on this node.
        runtime: runs ranks on this node.
        launch: the group's launch.
        rank: its number.
        secret: the fleet's engine secret.
        tokens: the secrets of the engines' tokens; None: the engine secret.
    """

    def __init__(
        self,
        paths: FleetPaths,
        runtime: Runtime,
        launch: GroupLaunch,
        rank: int,
        secret: str,
        *,
        tokens: TokenSecrets | None = None,
    ) -> None:
        self.node = launch.placements[rank].node
        self._id: RankId = launch.rank_id(paths.label, rank)
        self.log_path = str(paths.rank_log(self._id.slug))
        self._paths = paths
        self._runtime = runtime
        self._launch = launch
        self._index = rank
        self._secret = secret
        self._tokens = tokens or TokenSecrets(current=secret)
        self._rank: Rank | None = None
        self._load_guard = LoadGuard(partial(drop_page_cache, self.node, launch.candidate.model))
        self.token_secret = self._tokens.current
        """The secret of the token of the rank that is held: an adopted one may have a former one."""

    async def adopt(self) -> RankStatus | None:
        """See `RankHolder.adopt`. Waits for a holder that is about to go, such as the group's last process.

        A holder may have gone between two looks: a supervisor that was stopped answers calls whose callers are gone.
        """
        deadline = math.inf
        while (rank := await self._own()) is None:
            deadline = min(deadline, time.monotonic() + OWNED_S)  # from the first answer on: it may come late
            if time.monotonic() >= deadline or not await self._is_running():
                return await self._runtime.post_mortem(self._id)
            await asyncio.sleep(0.2)
        try:
            status = await rank.status()
            secret = self._secret_of(status.digest)
            if status.phase in ADOPTABLE and secret is not None:
                self._rank, self.token_secret = rank, secret
                return status
            return await rank.stop()
        finally:
            if self._rank is not rank:  # also after an error: its lease must not be held by nobody's object
                await rank.close()

    async def start(self, rendezvous_port: int) -> RankStatus:
        """See `RankHolder.start`."""
        if self._launch.candidate.device == "cuda":
            await drop_page_cache(self.node, self._launch.candidate.model)
        if keys := keys_dir(self._paths, self._launch, self._index):
            await asyncio.to_thread(write_keys, keys, self._secret, self._launch)
        await asyncio.to_thread(prepare_cache, self._paths, self._launch)
        deadline = time.monotonic() + OWNED_S
        while time.monotonic() < deadline:
            http, inner = free_port(self._launch.placements[self._index].address), free_port(ALONE)
            ports = Ports(http=http, inner=inner, rendezvous=rendezvous_port)
            spec = await self._spec(ports, self._tokens)
            # A group that it replaces may still drain, and has its declared port.
            port_s = self._launch.drain_s + PORT_S
            status = await _insist(partial(self._runtime.start, spec), Cause.PORT, port_s)
            self.token_secret = self._tokens.current
            self._rank = await self._own()
            if self._rank is None:
                await asyncio.sleep(0.2)
            elif len(self._launch.placements) > 1 and status.port != ports.http:
                await self.stop()  # the rank of an earlier start: it waits for peers that are gone
            else:
                return status
        raise EngineError(
            f"Rank {self._id} on {self.node} is still held by another process.",
            means="A group that should be gone holds it until its lease ends.",
            do="Nothing to do: the start is tried again.",
        )

    async def status(self) -> RankStatus:
        """See `RankHolder.status`."""
        return await self._held.status()

    async def wait(self) -> RankStatus:
        """See `RankHolder.wait`."""
        return await self._held.wait()

    async def stop(self) -> None:
        """See `RankHolder.stop`."""
        if self._rank is not None:
            rank, self._rank = self._rank, None
            try:
                await rank.stop()
            finally:
                await rank.close()

    async def release(self) -> None:
        """See `RankHolder.release`."""
        if self._rank is not None:
            rank, self._rank = self._rank, None
            await rank.close()

    async def sockets(self) -> Listening | None:
        """See `RankHolder.sockets`."""
        if (port := self._launch.candidate.port) is None:
            return None
        with suppress(SparkfleetError):
            pid = (await self._held.status()).pid
            listed = await LocalChannel(self.node).run(ReadSockets.argv, timeout_s=SOCKETS_S)
            pids = await asyncio.to_thread(_processes, pid, labels(self._paths.label, str(self._id)))
            found = sockets_of(pids, port, ReadSockets.parse(listed.stdout))
            halted = await asyncio.to_thread(halted_words, self._container())
            # Not the node's address: a forwarder has that.
            return Listening(address=ALONE, port=port, sockets=found, halted=halted)
        return None

    async def tail(self) -> str:
        """See `RankHolder.tail`. A group reads it while its engine starts: meanwhile memory is kept free on the node."""
        if self._launch.candidate.device == "cuda":
            self._load_guard.look()
        return await asyncio.to_thread(_tail, Path(self.log_path)) if self._rank is not None else ""

    async def memory(self) -> int:
        """See `RankHolder.memory`."""
        return available_memory()

    async def is_followed(self) -> bool:
        """See `RankHolder.is_followed`."""
        own, there = await asyncio.gather(self._held.status(), self._runtime.list(ended_s=GIVEN_BACK_S))
        return any(other.started_at > own.started_at for other in there if other.id != self._id)

    async def _own(self) -> Rank | None:
        """Owns the running rank. Waits for a supervisor that does not answer. Raises NodeError if it does not for long."""
        deadline = time.monotonic() + STOPPED_S
        while True:
            try:
                return await self._runtime.own(self._id)
            except NodeError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(STOPPED_LOOK_S)

    async def _is_running(self) -> bool:
        mine = (status for status in await self._runtime.list() if status.id == self._id)
        return any(status.phase in ADOPTABLE for status in mine)

    def _container(self) -> str:
        """The id of the rank's container; "" for a process."""
        try:
            return RankFiles.of(self._paths.run, str(self._id)).container.read_text().strip()
        except OSError:
            return ""

    @property
    def _held(self) -> Rank:
        assert self._rank is not None, "adopt or start it first"
        return self._rank

    def _secret_of(self, digest: str) -> str | None:
        """The secret of a running rank's token; None if it was started from another plan."""
        return next((one for one in self._tokens.every if launch_digest(self._launch, one) == digest), None)

    async def _spec(self, ports: Ports, tokens: TokenSecrets) -> RankSpec:
        # While a container tool is updated, its daemon ends all containers, and comes back later than the group does.
        container = await _insist(partial(container_of, self._launch), Cause.TOOL, DAEMON_S)
        return spec_here(
            self._paths, self._launch, self._index, ports, self._secret, tokens=tokens, container=container
        )


async def _insist(call: Callable[[], Awaitable[T]], cause: Cause, wait_s: float) -> T:
    """The result of a call, which is repeated for `wait_s` if it fails by this cause."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return await call()
        except NodeError as error:
            if error.because is not cause or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(AGAIN_S)


def _processes(pid: int | None, carried: Mapping[str, str]) -> set[int]:
    """A rank's processes on this node, by descent and by label, without its supervisor."""
    if pid is None:
        return set()
    own = process(pid)
    found = {one.pid for one in (*descendants(pid, processes()), *labelled(carried))} | {pid}
    return found - {own.parent if own else 0}


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text[max((began.end() for began in _BEGAN.finditer(text)), default=0) :]
