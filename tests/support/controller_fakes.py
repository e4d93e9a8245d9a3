"""Applications and nodes that exist in memory only, for tests of the controller. They start nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparkfleet.controlplane.nodes import CopyContent
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
        self.unusable: dict[str, str] = {}
        """Nodes on which nothing can start, each with the reason."""
        self.kept: dict[str, KeptCopy] = {}
        """The copy of the store on each node that has one."""
        self.refuses: dict[str, str] = {}
        """Nodes that take no copy, each with the reason."""
        self.sent: list[tuple[tuple[str, ...], CopyContent]] = []
        self.swept: list[frozenset[GroupKey]] = []
        self.swept_newest: dict[str, int] = {}

    async def look(self) -> tuple[NodeReport, ...]:
        """All nodes, of which those that are away have not joined."""
        return tuple(
            NodeReport(
                name=name,
                joined=True,
                memory_available=memory,
                memory_total=memory,
                boot=self.boots[name],
                cannot_start=self.unusable.get(name, ""),
                kept_copy=self.kept.get(name),
            )
            if name not in self.away
            else NodeReport(name=name, joined=False)
            for name, memory in self.available.items()
        )

    async def sweep(
        self, keep: frozenset[GroupKey], newest: Mapping[str, int], keep_kv: frozenset[str]
    ) -> tuple[str, ...]:
        """Records its arguments."""
        self.swept.append(keep)
        self.swept_newest = dict(newest)
        self.keep_kv = keep_kv
        return ()

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> dict[str, str]:
        """Keeps it on each node that does not refuse it."""
        self.sent.append((tuple(names), copy))
        for name in names:
            if name not in self.refuses:
                self.kept[name] = KeptCopy(name=copy.name, bytes=len(copy.content), since_s=0.0)
        return {name: self.refuses.get(name, "") for name in names}
