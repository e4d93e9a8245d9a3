"""The life of the controller's process: opens the store, works with it, and waits if it cannot be used. Independent of Ray.

No trouble with a file ends the process: Ray does not start an actor again whose constructor failed, and a new process would
find the same trouble. While it waits it changes nothing: groups go on serving, and gateways keep their last table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.controller_note import NoteWriter
from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.state.status import App
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.mark import StoreMark, mark_of
from sparkfleet.controlplane.store_safety.opening import unusable

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between two attempts to open the store."""
LIST_S = 10.0
"""Time limit of a list of what runs."""

OpenStore = Callable[[Collection[Generation], StoreMark | None], Store]
"""Opens the store, with a list of what runs and the mark that this process knows. Raises StoreError."""


class ApiFront(Protocol):
    """The controller's API, as far as its life changes it."""

    def work(self, controller: Controller) -> None:
        """Answers with this controller from now on."""
        ...

    def hold(self, error: StoreError) -> None:
        """Answers every request with 503 and this reason from now on."""
        ...


class ControllerLife:
    """Runs one controller after another, each with a store that can be used.

    Args:
        running: everything that exists; used only while the store cannot be opened.
        work: runs a controller until it fails.
    """

    def __init__(
        self,
        *,
        open_store: OpenStore,
        running: Callable[[], Awaitable[Collection[App]]],
        make: Callable[[Store], Controller],
        work: Callable[[Controller, Store], Awaitable[None]],
        front: ApiFront,
        note: NoteWriter,
    ) -> None:
        self._open = open_store
        self._running = running
        self._make = make
        self._work = work
        self._front = front
        self._note = note
        self._mark: StoreMark | None = None
        self._trouble: StoreError | None = None
        """The reason for which it waits; None while it works."""
        self.controller: Controller | None = None
        """None while it waits."""

    async def run(self) -> None:
        """Works and waits until a controller's own work fails; raises that."""
        loop = asyncio.get_running_loop()
        while True:
            store = await self._opened()
            began = loop.time()
            try:
                await self._live(store)
            except StoreError as error:
                self._hold(error)
            except sqlite3.Error as error:
                self._hold(unusable(store.path, error))
            finally:
                self.controller = None
                store.close()
            # At once after a long time: the file in the store's place is the better reason.
            await asyncio.sleep(max(0.0, AGAIN_S - (loop.time() - began)))

    async def _live(self, store: Store) -> None:
        self._mark = mark_of(store)
        controller = self._make(store)
        if self._trouble is not None:
            with contextlib.suppress(sqlite3.Error):  # a full disk: the log has it
                await controller.failures.resumed(self._trouble.what)
        self._trouble = None
        self.controller = controller
        self._front.work(controller)
        self._note.work()
        try:
            await controller.failures.slowed(self._work(controller, store))
        except StoreError:
            with contextlib.suppress(sqlite3.Error):
                self._mark = mark_of(store)
            raise

    async def _opened(self) -> Store:
        running: tuple[Generation, ...] = ()
        while True:
            try:
                if self._trouble is not None:
                    running = await self._exists()
                return self._open(running, self._mark)
            except StoreError as error:
                self._hold(error, running)
            except Exception as error:
                log.exception("the store could not be opened")
                self._note.change(what=f"The store could not be opened: {error!r}.")
            await asyncio.sleep(AGAIN_S)

    async def _exists(self) -> tuple[Generation, ...]:
        """Generations that exist; empty if that cannot be read: then they are compared when the controller works."""
        try:
            async with asyncio.timeout(LIST_S):
                apps = await self._running()
        except Exception as error:
            log.warning("what runs could not be read: %r", error)
            return ()
        return tuple(sorted({(app.deployment, app.generation) for app in apps}))

    def _hold(self, error: StoreError, running: tuple[Generation, ...] = ()) -> None:
        if self._trouble is None or self._trouble.what != error.what:
            log.error("the controller changes nothing: %s", error)
        self._trouble = error
        self._front.hold(error)
        self._note.hold(error, error.fault.value, running)
