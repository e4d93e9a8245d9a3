"""Ranks that exist in memory only, for tests of code above the runtime. A test controls them."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Container
from dataclasses import dataclass, field

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import Phase, RankId, RankSpec, RankStatus
from sparkfleet.runtime.control_socket import BY_REQUEST, NO_OWNER

_FIRST_PID = 1000


@dataclass
class _Life:
    spec: RankSpec
    status: RankStatus
    owner: FakeRank | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        return self.status.phase is not Phase.EXITED

    def update(self, **changes: object) -> RankStatus:
        self.status = self.status.model_copy(update=changes)
        return self.status

    def end(self, code: int, reason: str) -> RankStatus:
        if self.alive:
            self.update(phase=Phase.EXITED, exit_code=code, reason=reason)
            self.ended.set()
        return self.status


class FakeRuntime:
    """A `Runtime` without processes and without a clock: a lease runs out when the test calls `expire`.

    Attributes:
        started: the specs of all ranks started, in order; adopted ones are not in it.
        stopped: the ids of all ranks that were stopped or swept, in order.
    """

    def __init__(self) -> None:
        self.started: list[RankSpec] = []
        self.stopped: list[RankId] = []
        self._lives: dict[RankId, _Life] = {}
        self._refusals: dict[RankId, NodeError] = {}
        self._pids = itertools.count(_FIRST_PID)

    async def start(self, spec: RankSpec) -> RankStatus:
        """See `Runtime.start`. A rank with a `prepare` stays in phase PREPARING until `prepared`."""
        if error := self._refusals.pop(spec.id, None):
            raise error
        life = self._lives.get(spec.id)
        if life and life.alive:
            if life.spec.digest != spec.digest:
                raise NodeError(f"rank {spec.id} already runs, with another command")
            return life.status
        self.started.append(spec)
        started = RankStatus(
            id=spec.id,
            digest=spec.digest,
            phase=Phase.PREPARING,
            port=spec.port,
            started_at=float(len(self.started)),
        )
        self._lives[spec.id] = _Life(spec, started)
        return started if spec.prepare else self.prepared(spec.id)

    async def own(self, id_: RankId) -> FakeRank | None:
        """See `Runtime.own`."""
        life = self._lives.get(id_)
        if life is None or life.owner:
            return None
        life.owner = FakeRank(self, life)
        life.update(owned=True)
        return life.owner

    async def list(self, *, ended_s: float = 0.0) -> tuple[RankStatus, ...]:
        """See `Runtime.list`. Without a clock, every ended rank has just ended."""
        return tuple(life.status for life in self._lives.values() if life.alive or ended_s > 0)

    async def sweep(self, keep: Container[RankId], before: float | None = None) -> tuple[str, ...]:
        """See `Runtime.sweep`. It takes no time, so that nothing begins meanwhile."""
        unwanted = [status.id for status in await self.list() if status.id not in keep]
        for id_ in unwanted:
            self.stop(id_)
        self._lives = {id_: life for id_, life in self._lives.items() if id_ in keep}
        return tuple(f"rank {id_}" for id_ in unwanted)

    async def post_mortem(self, id_: RankId) -> RankStatus | None:
        """See `Runtime.post_mortem`."""
        life = self._lives.get(id_)
        return life.status if life and not life.alive else None

    def prepared(self, id_: RankId) -> RankStatus:
        """Starts the engine of a preparing rank."""
        return self._lives[id_].update(phase=Phase.RUNNING, pid=next(self._pids))

    def exit(self, id_: RankId, code: int, reason: str = "") -> None:
        """Ends the engine (or the preparation) of a rank as if by itself."""
        self._lives[id_].end(code, reason or f"the engine exited with code {code}")

    def crash(self, id_: RankId) -> None:
        """Kills a rank and its supervisor."""
        self.exit(id_, -signal.SIGKILL, "its supervisor was killed, and the engine with it")

    def expire(self, id_: RankId) -> None:
        """Lets the lease time pass: ends the rank if it has no owner."""
        life = self._lives[id_]
        if life.owner is None:
            life.end(-signal.SIGTERM, f"stopped: {NO_OWNER} for {life.spec.lease_s:g} s")

    def stop(self, id_: RankId) -> RankStatus:
        """Stops a rank, as its owner would."""
        life = self._lives[id_]
        if life.alive:
            self.stopped.append(id_)
        return life.end(-signal.SIGTERM, f"stopped: {BY_REQUEST}")

    def refuse(self, id_: RankId, error: NodeError) -> None:
        """Makes the next start of a rank fail."""
        self._refusals[id_] = error


class FakeRank:
    """The `Rank` of a `FakeRuntime`."""

    def __init__(self, runtime: FakeRuntime, life: _Life) -> None:
        self._runtime = runtime
        self._life = life

    async def status(self) -> RankStatus:
        """See `Rank.status`."""
        return self._life.status

    async def wait(self) -> RankStatus:
        """See `Rank.wait`. Raises NodeError after `close`."""
        if self._life.owner is not self:
            raise NodeError(f"rank {self._life.status.id} was released")
        await self._life.ended.wait()
        return self._life.status

    async def stop(self) -> RankStatus:
        """See `Rank.stop`."""
        return self._runtime.stop(self._life.status.id)

    async def close(self) -> None:
        """See `Rank.close`."""
        if self._life.owner is self:
            self._life.owner = None
            self._life.update(owned=False)
