"""Applications and nodes that exist in memory only, for tests of the controller. They start nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sparkfleet.controlplane.nodes import CopyContent, SweepList
from sparkfleet.controlplane.state.status import App, AppStatus, NodeReport
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey


class FakeServeBackend:
    """Records its calls. A test changes the state of applications with `become` and `finish`."""

    def __init__(self) -> None:
        self.apps: dict[GroupKey, App] = {}
        self.launches: list[GroupLaunch] = []
        self.renewed = 0
        """Calls of `renew`."""

    async def list(self) -> tuple[App, ...]:
        """All applications."""
        return tuple(self.apps.values())

    async def deploy(self, launch: GroupLaunch) -> None:
        """Adds an application in the state `starting`."""
        self.launches.append(launch)
        self.become(launch.deployment, launch.generation, "starting", replica=launch.replica)

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """Marks it as retiring until `finish`."""
        if (deployment, generation, replica) in self.apps:
            self.become(deployment, generation, "retiring", replica=replica)

    async def renew(self) -> None:
        """Counts it."""
        self.renewed += 1

    def become(
        self, deployment: str, generation: int, status: AppStatus, message: str = "", replica: int = 0
    ) -> None:
        """Sets an application's state."""
        self.apps[deployment, generation, replica] = App(
            deployment=deployment, generation=generation, replica=replica, status=status, message=message
        )

    def finish(self) -> None:
        """Drops retiring applications that are gone."""
        self.apps = {mark: app for mark, app in self.apps.items() if app.status != "retiring"}


class FakeNodes:
    """Nodes in memory only, for tests of the controller."""

    def __init__(self, available: dict[str, int]) -> None:
        self.available = available
        self.boots = dict.fromkeys(available, "first")
        self.away: set[str] = set()
        self.silent: set[str] = set()
        """Nodes that have joined and do not answer."""
        self.looked: list[Collection[str] | None] = []
        """The nodes of each look; None: all."""
        self.unusable: dict[str, str] = {}
        """Nodes on which nothing can start, each with the reason."""
        self.kept: dict[str, KeptCopy] = {}
        """The copy of the store on each node that has one."""
        self.refuses: dict[str, str] = {}
        """Nodes that take no copy, each with the reason."""
        self.sent: list[tuple[tuple[str, ...], CopyContent]] = []
        self.swept: list[frozenset[GroupKey]] = []
        """Groups that each sweep left alone."""
        self.swept_on: list[frozenset[str]] = []
        """The nodes of each sweep."""
        self.swept_newest: dict[str, int] = {}

    async def look(self, names: Collection[str] | None = None) -> tuple[NodeReport, ...]:
        """All nodes or these, of which those that are away have not joined. One that is silent has joined only."""
        self.looked.append(names)
        return tuple(self._report(name) for name in self.available if names is None or name in names)

    def _report(self, name: str) -> NodeReport:
        if name in self.away:
            return NodeReport(name=name, joined=False)
        if name in self.silent:
            return NodeReport(name=name, joined=True)
        memory = self.available[name]
        return NodeReport(
            name=name,
            joined=True,
            memory_available=memory,
            memory_total=memory,
            boot=self.boots[name],
            cannot_start=self.unusable.get(name, ""),
            kept_copy=self.kept.get(name),
        )

    async def sweep(self, names: Collection[str], listed: Callable[[], SweepList]) -> tuple[str, ...]:
        """Records its arguments."""
        one = listed()
        self.swept.append(one.keep)
        self.swept_on.append(frozenset(names))
        self.swept_newest = dict(one.newest)
        self.keep_kv = one.keep_kv
        return ()

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> dict[str, str]:
        """Keeps it on each node that does not refuse it."""
        self.sent.append((tuple(names), copy))
        for name in names:
            if name not in self.refuses:
                self.kept[name] = KeptCopy(name=copy.name, bytes=len(copy.content), since_s=0.0)
        return {name: self.refuses.get(name, "") for name in names}
