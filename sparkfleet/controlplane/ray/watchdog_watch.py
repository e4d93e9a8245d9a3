"""Watch of a node's actor over the node's Ray watchdog, which nothing but systemd would start again."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sparkfleet.controlplane.api.api_models import Role
from sparkfleet.controlplane.api.store_request import OnNode
from sparkfleet.errors import NodeError
from sparkfleet.remote.local import execute
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_files import stopped_words
from sparkfleet.runtime.files.state_probe import is_watchdog_of, watchdogs
from sparkfleet.runtime.node_command import node_command

log = logging.getLogger(__name__)

NAMED_S = 5.0
"""Seconds without a watchdog after which that is named: systemd starts it again in this time."""
RESTART_S = 15.0
"""Seconds after which it is started again: `up`, an upgrade and a change of the head start one themselves."""
RETRY_S = 60.0
"""Seconds between two attempts."""
START_S = 30.0
"""Time limit of an attempt."""
MISSING = (
    "The Ray watchdog does not run here, so Ray would not be started again if it ended. Ray's node actor starts the"
    f" watchdog again after {RESTART_S:.0f} s without it."
)


class WatchdogWatch:
    """Names a watchdog that is stopped or gone, and starts it again.

    Args:
        environment: that of Ray on this node; the watchdog and Ray's next start inherit it.
    """

    def __init__(
        self,
        paths: FleetPaths,
        environment: Callable[[], Mapping[str, str]],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._environment = environment
        self._steady = steady
        self._pid = 0
        self._seen_at = steady()
        self._tried_at = -RETRY_S
        self._starting: asyncio.Task[None] | None = None
        self._failure = ""
        """Reason for which the last attempt failed, in words."""

    async def look(self) -> tuple[str, ...]:
        """The trouble with the watchdog, a sentence with what puts it right; () for none.

        Starts it if it has been gone for `RESTART_S`, on a node that still has a role in the fleet.
        """
        pid = await asyncio.to_thread(self._find)
        now = self._steady()
        if pid or not os.path.exists(
            self._paths.role
        ):  # Path's raises in a directory that may not be searched
            self._seen_at, self._failure = now, ""
            means = "Ray would not be started again here if it ended"
            return stopped_words(pid, "The Ray watchdog", means) if pid else ()
        if now - self._seen_at >= RESTART_S and now - self._tried_at >= RETRY_S:
            self._tried_at, self._starting = now, asyncio.create_task(self._start())
        if self._failure:
            return (f"{MISSING.partition('. ')[0]}. It could not be started again: {self._failure}",)
        return (MISSING,) if now - self._seen_at >= NAMED_S else ()

    def _find(self) -> int:
        """The watchdog's process id; 0 if there is none. The last one is looked at first, as all of /proc takes longer."""
        if not (self._pid and is_watchdog_of(self._paths.root, self._pid)):
            self._pid = watchdogs().get(self._paths.root, 0)
        return self._pid

    async def _start(self) -> None:
        """Starts it in a process of its own."""
        log.warning("the watchdog is started again")
        try:
            python = Role.model_validate_json(await asyncio.to_thread(self._paths.role.read_bytes)).python
            request = OnNode(fleet=self._paths.root.name, state_dir=str(self._paths.root))
            done = await execute(
                node_command(python, "watch"),
                env=self._environment(),
                stdin=request.model_dump_json().encode(),
                timeout_s=START_S,
            )
            self._failure = done.stderr.strip()[-300:] if done.exit_code else ""
        except (OSError, ValueError, NodeError) as error:
            self._failure = str(error)


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which a process of this user was started. Raises OSError if it may not be read."""
    pairs = (
        os.fsdecode(one).partition("=")
        for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if one
    )
    return {name: value for name, _, value in pairs}
