"""The place of the store on the simulated head: the right file, none, garbage, another fleet's, or an older copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sparkfleet.controlplane.state.status import App
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreContent, StoreError, StoreFault, judge
from sparkfleet.controlplane.store_safety.mark import StoreMark, mark_of
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
from sparkfleet.lab.simulation.plans import random_plan
from sparkfleet.lab.simulation.timeline import Timeline

FLEET = "simulated"
FILE = Path("/simulated/sparkfleet.db")

Content = Literal["right", "away", "garbage", "foreign", "older"]


class SimulatedStore(Store):
    """The real store in memory, on a disk that can be full."""

    def __init__(self, time: Timeline, fleet: str = FLEET) -> None:
        super().__init__(Path(":memory:"), clock=time.unix, keep_events=400)
        self.identify(self.identity().model_copy(update={"fleet": fleet}))
        self.is_full = False

    def set_full(self, full: bool) -> None:
        """Let the disk have no page more, or enough."""
        self.is_full = full
        pages = self._db.execute("PRAGMA page_count").fetchone()[0] if full else 1_000_000
        self._db.execute(f"PRAGMA max_page_count = {pages}")

    def copy_into(self, other: SimulatedStore) -> None:
        """Replace the content of another one by this one's."""
        self._db.backup(other._db)
        other.forget_read()


class StorePlace:
    """The store of a simulated fleet, and what is found in its place.

    Args:
        time: the simulated clock.
        names: nodes.
        chance: draws the deployments of the foreign store.
        root: a real directory, for the lock of the process that works with the store.
    """

    def __init__(self, time: Timeline, names: tuple[str, ...], chance: random.Random, root: Path) -> None:
        self._time = time
        self._root = root
        self.right = SimulatedStore(time)
        """The one that has everything that was ever applied."""
        self.content: Content = "right"
        self.back_at = float("-inf")
        """Moment at which the right one came back last, or the process ended that worked with it, simulated seconds."""
        self._older = SimulatedStore(time)
        self._foreign = SimulatedStore(time, "other")
        self._foreign.deployments.put(*random_plan("z", names, chance), "somebody else")
        self._allowed: tuple[object, ...] = ()
        """State that the guard allowed last: its answer depends on nothing else."""
        self._mark: StoreMark = mark_of(self.right)
        self.right.on_change = self._marked

    def keep_older(self) -> None:
        """Copy the right one as it is: later it is an older one. Not while that is in the place: it would be no older."""
        if self.content != "older":
            self.right.copy_into(self._older)

    def put(self, content: Content) -> bool:
        """Put something into the place; False if there is no older copy that differs."""
        if content == "older" and self._older.identity().changes >= self.right.identity().changes:
            return False
        if content == "right" and self.content != "right":
            self.back_at = self._time.seconds
        self.content = content
        return True

    def lock(self) -> StoreLock:
        """The lock as a new process of the controller sees it."""
        return StoreLock(self._root)

    def open(self, running: Sequence[App] = ()) -> SimulatedStore:
        """The store in the place, if the guard lets it be used; without the guard a missing one would be made.

        Raises:
            StoreError: it may not be used.
        """
        if self.content == "garbage":
            raise StoreError(StoreFault.UNREADABLE, "garbage")
        store = {"foreign": self._foreign, "older": self._older, "right": self.right}.get(self.content)
        content = (
            None if store is None else StoreContent(0, store.identity(), store.deployments.generations())
        )
        error = judge(FLEET, FILE, content, self._mark, {(app.deployment, app.generation) for app in running})
        if error is not None:
            raise error
        return store or SimulatedStore(self._time)

    def check(self, store: SimulatedStore, apps: Sequence[App]) -> str:
        """Checks as `StoreWatch`: raises StoreError if the open store is not that in the place, or older than what runs."""
        seen = (store, self.content, self._mark, store.writes, [app.group for app in apps])
        if seen != self._allowed:
            if self.open(apps) is not store:
                raise StoreError(StoreFault.MISSING, "replaced")
            self._allowed = seen
        return ""

    def _marked(self) -> None:
        self._mark = mark_of(self.right)
