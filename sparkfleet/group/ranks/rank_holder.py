"""The holder of one rank of a group: on this node (`local_rank.py`), on another node through an actor there
(`remote_rank.py`).

The rank is a child of its supervisor. A holder keeps the rank's lease; if it dies, the next holder adopts the rank.
"""

from __future__ import annotations

from typing import Protocol

from sparkfleet.group.exposed_sockets import Listening
from sparkfleet.runtime.base import RankStatus


class RankHolder(Protocol):
    """Holds one rank of one group. Every call may raise NodeError: its node is gone."""

    node: str
    log_path: str
    """Path of the rank's log on its node."""

    async def adopt(self) -> RankStatus | None:
        """Takes over the rank if it already runs, started from the same plan. If from another, stops it.

        Returns its status, or, in phase EXITED, that of its last run; None if neither is known.
        """
        ...

    async def start(self, rendezvous_port: int) -> RankStatus:
        """Starts the rank and holds it. Raises EngineError if another holder does not release it."""
        ...

    async def status(self) -> RankStatus:
        """Reads the rank's current status."""
        ...

    async def wait(self) -> RankStatus:
        """Returns when the rank has exited, with any code."""
        ...

    async def stop(self) -> None:
        """Stops the rank and everything it started, if it is held."""
        ...

    async def release(self) -> None:
        """Gives the rank up and lets it run, if it is held: the next holder adopts it, or its lease runs out."""
        ...

    async def sockets(self) -> Listening | None:
        """Listening sockets of all processes of a custom workload; None if they cannot be read, and on another node."""
        ...

    async def tail(self) -> str:
        """The end of its log since its start, at most 64 KiB; "" if it was not started: the log is an older one."""
        ...

    async def memory(self) -> int:
        """Memory available on its node, bytes."""
        ...

    async def is_followed(self) -> bool:
        """True if a later group of this fleet has a rank on its node, or had one `GIVEN_BACK_S` ago."""
        ...
