"""Watches the controller as the watchdog watches Ray: makes it again if it is gone, and ends it if it hangs.

Ray restarts a controller whose process ended, within seconds. It does not if the actor itself is gone, and it does not
notice one that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from sparkfleet.controlplane.api.api_models import UpRequest
from sparkfleet.controlplane.controller_note import ControllerNote, read_note
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.state.head_address import HeadAddress, read_address
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.group.crash_pause import pause_s
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.runtime import processes
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import listens
from sparkfleet.runtime.node_command import node_command
from sparkfleet.specs.timeouts import Timeouts

log = logging.getLogger(__name__)

LOOK_S = 1.0
ANSWER_S = 5.0
"""Time limit of an answer. Any answer counts: also 503."""
GONE_S = 4.0
"""Silence after which a controller without a process is made again: Ray starts another process within that time."""
HUNG_S = 45.0
"""Silence after which a controller with a process is ended: pauses of a disk and of a busy machine are shorter."""
MAKE_S = 90.0
"""Time limit for making a controller."""
PAUSES = Timeouts()


class ControllerWatch:
    """Keeps one fleet's controller alive.

    Args:
        paths: the fleet's directories on the head.
        make: creates the controller in the live Ray; raises SparkfleetError.
        answers: True if the controller answers at an address.
        steady: a clock that only goes forward, seconds.
    """

    def __init__(
        self,
        paths: FleetPaths,
        make: Callable[[HeadAddress], Awaitable[None]],
        answers: Callable[[str], Awaitable[bool]],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._make = make
        self._answers = answers
        self._steady = steady
        self._looked_at = steady()
        self._silent_s = 0.0
        """Seconds without an answer, without pauses of this process itself."""
        self._made = 0
        """Attempts to make it since it answered last."""
        self._not_before = 0.0

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # a watch that ends is missed by nobody
                log.exception("the controller could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once, and acts."""
        address = read_address(self._paths)
        if address is None:
            return
        answered, before, self._looked_at = await self._answers(address.api), self._looked_at, self._steady()
        if answered:
            self._silent_s, self._made = 0.0, 0
            return
        # Of a pause of this process only one look counts: nobody asked meanwhile.
        self._silent_s += min(self._looked_at - before, LOOK_S + ANSWER_S)
        silent_s = self._silent_s
        note = read_note(self._paths)
        process = _process(self._paths, note)
        if process is None:
            if silent_s >= GONE_S and self._steady() >= self._not_before:
                await self._make_again(address, silent_s)
        elif silent_s >= HUNG_S and not (note is not None and note.api):
            log.error(
                "the controller (pid %s) has not answered for %.0f s: it is ended", process.pid, silent_s
            )
            await processes.signal_all([process], signal.SIGKILL, wait_s=LOOK_S)
            self._silent_s = 0.0

    async def _make_again(self, address: HeadAddress, silent_s: float) -> None:
        if not await asyncio.to_thread(listens, address.ray):
            return  # Ray itself is gone: its watchdog restarts both
        log.error("the controller is gone since %.0f s: another one is made", silent_s)
        self._made += 1
        try:
            await self._make(address)
        except SparkfleetError as error:
            log.error("it could not be made: %s", error)
        self._not_before = self._steady() + max(GONE_S, pause_s(self._made, PAUSES))


def watch_of(paths: FleetPaths, request: UpRequest) -> ControllerWatch:
    """The watch over a head's controller. `request`: the fleet, if the node's role cannot be read any more."""

    async def make(address: HeadAddress) -> None:
        now = request
        # `up` may have stored another inventory since this watch began.
        with contextlib.suppress(ControlError):
            role = await asyncio.to_thread(read_role, paths)
            now = role.up if role is not None and role.up is not None else request
        await _make(now.model_copy(update={"state_dir": str(paths.root), "apply": ()}))

    return ControllerWatch(paths, make, answers)


async def _make(request: UpRequest) -> None:
    """Makes a controller in a process of its own: this one may have been connected to another cluster before."""
    argv = node_command(sys.executable, "controller")
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(MAKE_S):
            await process.communicate(request.model_dump_json().encode())
    except TimeoutError:
        log.error("it was not made in %.0f s", MAKE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answers(url: str) -> bool:
    """True if a program at this address answers any HTTP request in time."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _process(paths: FleetPaths, note: ControllerNote | None) -> processes.Process | None:
    """The controller's process by its note; None if it is gone, and its pid may be another's."""
    if note is None or note.pid == os.getpid():
        return None
    found = processes.process(note.pid)
    return found if found is not None and processes.carries(note.pid, {LABEL: paths.label}) else None
