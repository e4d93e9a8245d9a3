"""A rank on another node, through a Ray actor there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkfleet.errors import NodeError
from sparkfleet.group.exposed_sockets import Listening
from sparkfleet.runtime.base import Phase, RankStatus
from sparkfleet.values import Value


class RankObservation(Value):
    """Answer of a `RankActor`."""

    status: RankStatus
    log_path: str


class RemoteRank:
    """A rank on another node, through an actor there that has a `LocalRank`.

    Args:
        node: its name.
        actor: handle of a `RankActor`.
        lost: Ray's exception for an actor or node that is gone.
    """

    def __init__(self, node: str, actor: Any, lost: type[BaseException]) -> None:
        self.node = node
        self.log_path = ""
        self._actor = actor
        self._lost = lost
        self._last: RankStatus | None = None

    async def adopt(self) -> RankStatus | None:
        """See `RankHolder.adopt`."""
        text = await self._ask(self._actor.adopt.remote)
        return self._read(text) if text else None

    async def start(self, rendezvous_port: int) -> RankStatus:
        """See `RankHolder.start`."""
        return self._read(await self._ask(lambda: self._actor.start.remote(rendezvous_port)))

    async def status(self) -> RankStatus:
        """See `RankHolder.status`."""
        return self._read(await self._ask(self._actor.status.remote))

    async def wait(self) -> RankStatus:
        """See `RankHolder.wait`. A node or an actor that is gone is an exit, too, without an exit code."""
        try:
            return self._read(await self._ask(self._actor.wait.remote))
        except NodeError as error:
            if self._last is None:
                raise
            return self._last.model_copy(update={"phase": Phase.EXITED, "reason": error.what})

    async def stop(self) -> None:
        """See `RankHolder.stop`."""
        await self._ask(self._actor.stop.remote)

    async def release(self) -> None:
        """See `RankHolder.release`."""
        await self._ask(self._actor.release.remote)

    async def sockets(self) -> Listening | None:
        """See `RankHolder.sockets`."""
        return None

    async def tail(self) -> str:
        """See `RankHolder.tail`."""
        return str(await self._ask(self._actor.tail.remote))

    async def memory(self) -> int:
        """See `RankHolder.memory`."""
        return int(await self._ask(self._actor.memory.remote))

    async def is_followed(self) -> bool:
        """See `RankHolder.is_followed`."""
        return bool(await self._ask(self._actor.is_followed.remote))

    def _read(self, text: str) -> RankStatus:
        seen = RankObservation.model_validate_json(text)
        self._last, self.log_path = seen.status, seen.log_path
        return seen.status

    async def _ask(self, call: Callable[[], Any]) -> str:
        try:
            answer: str = await call()
        except self._lost as error:
            raise NodeError(
                f"{self.node}: the node or its rank's actor is gone",
                means="Its rank is lost, so the whole group is stopped.",
                do="Run `sparkfleet doctor` to check the node.",
            ) from error
        return answer
