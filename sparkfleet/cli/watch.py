"""Follows deployments until they serve, fail, or are gone. Ctrl-C ends the watching, not the work."""

from __future__ import annotations

import time

from rich.status import Status

from sparkfleet.cli.output import console, event_line
from sparkfleet.control.client import FleetClient
from sparkfleet.control.status import DeploymentStatus, FleetStatus
from sparkfleet.control.store import Event
from sparkfleet.errors import ControlError

QUIET_S = 3.0
"""Without a terminal a line is printed at least this often."""
WAIT_S = 2.0

PASSING = frozenset({"progress"})
"""Kinds of events that are shown in passing on a terminal, and not kept on the screen."""


class Progress:
    """One line that says what is going on: redrawn on a terminal, printed every few seconds elsewhere.

    Args:
        quiet: nothing is shown, because standard output is for a program.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._status: Status | None = None
        self._said_at = time.monotonic()
        self._began = time.monotonic()
        self._heard = ""

    def passing(self, words: str) -> None:
        """Show what is going on now."""
        if self._quiet:
            return
        text = f"{words} ({time.monotonic() - self._began:.0f} s)"
        if console.is_terminal:
            if self._status is None:
                self._status = console.status(text)
                self._status.start()
            self._status.update(text[: console.width - 4])
        elif time.monotonic() - self._said_at >= QUIET_S:
            console.print(text)
            self._said_at = time.monotonic()

    def still(self, words: str) -> None:
        """Show that it goes on, with the last that was heard."""
        self.passing(f"{words}: {self._heard}" if self._heard else words)

    def event(self, event: Event) -> None:
        """Show an event: for good, or in passing."""
        if self._quiet:
            return
        self._heard = event.message if event.kind in PASSING else ""
        if event.kind in PASSING:
            self.passing(event.message)
            return
        console.print(event_line(event))
        self._said_at = time.monotonic()

    def done(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


async def until_settled(
    client: FleetClient, wanted: dict[str, int], after: int, progress: Progress
) -> dict[str, DeploymentStatus]:
    """Show events until every wanted deployment (name to generation) is ready or has failed; their last status.

    Raises:
        ControlError: one of them is no longer wanted by anybody.
    """
    while True:
        for event in await client.events(after, wait_s=WAIT_S):
            after = event.id
            if event.deployment in wanted:
                progress.event(event)
        fleet = await client.fleet()
        if lost := wanted.keys() - {one.name for one in fleet.deployments if one.state != "stopping"}:
            progress.done()
            raise ControlError(
                f"{', '.join(sorted(lost))}: somebody deleted it, or took the fleet down, meanwhile."
            )
        settled = _settled(fleet, wanted)
        if len(settled) == len(wanted):
            progress.done()
            return settled
        progress.still("waiting for " + ", ".join(sorted(wanted.keys() - settled.keys())))


async def until_gone(client: FleetClient, name: str, after: int, progress: Progress) -> None:
    """Show events until nothing of a deployment is left."""
    while any(deployment.name == name for deployment in (await client.fleet()).deployments):
        progress.passing(f"stopping {name}")
        for event in await client.events(after, name, wait_s=0.5 if console.is_terminal else WAIT_S):
            after = event.id
            progress.event(event)
    progress.done()


def _settled(status: FleetStatus, wanted: dict[str, int]) -> dict[str, DeploymentStatus]:
    return {
        d.name: d
        for d in status.deployments
        if d.name in wanted and d.generation >= wanted[d.name] and d.state in ("ready", "failed")
    }
