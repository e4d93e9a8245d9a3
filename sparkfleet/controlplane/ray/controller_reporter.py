"""Delivers the reports of a group to the controller's actor."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import Any

from sparkfleet.group.report import GroupReport
from sparkfleet.runtime.named_actor import NamedActor

log = logging.getLogger(__name__)


class ControllerReporter:
    """Delivers reports to the controller's actor without waiting, and finds it again after it was restarted."""

    def __init__(self, actor: NamedActor) -> None:
        self._actor = actor
        self._controller: Any = None
        self._finding: asyncio.Task[None] | None = None
        self._newest = ""

    def __call__(self, report: GroupReport) -> None:
        """Sends a report; a controller that has to be found first gets the newest one then."""
        self._newest = report.model_dump_json()
        if self._controller is not None:
            self._send()
        elif self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find())

    async def _find(self) -> None:
        try:
            self._controller = await self._actor.find()
        except Exception as error:
            log.warning("no report to the controller: %r", error)
        else:
            self._send()

    def _send(self) -> None:
        try:
            sent = self._controller.report.remote(self._newest)
            sent.future().add_done_callback(self._arrived)
        except Exception as error:
            log.warning("no report to the controller: %r", error)
            self._controller = None

    def _arrived(self, sent: Future[None]) -> None:
        """Looks the controller up again after a failure: another actor may have its name by now."""
        if sent.exception() is not None:
            self._controller = None
