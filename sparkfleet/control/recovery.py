"""What the controller does about groups that do not start, do not stay up, or lie on nodes that are gone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping

from sparkfleet.control.apps import Apps
from sparkfleet.control.ladder import rung_without, step
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.status import App, GroupReport, NodeReport
from sparkfleet.control.store import Desired, Standing, Store
from sparkfleet.engines.signatures import Diagnosis
from sparkfleet.planning.remembered import Remembered, fingerprint

BREAKER_FAILURES = 5
BREAKER_S = 600.0
"""A group that was ready and failed this often within this time is stopped for good: it would only crash again."""

RESTARTS = 3
"""Starts in a row that fail, of a group that was ready before: Serve, which ends a group that never started, would go on."""

GONE_S = 180.0
"""A node that has been away this long is not waited for where a group can lie elsewhere: a Spark boots in less."""

OrderOf = Callable[[Desired, int], GroupOrder]
Record = Callable[[str, int, str, str, str], Awaitable[None]]
"""Writes an event: deployment, generation, subject, kind, message."""


class Recovery:
    """Goes down ladders, breaks circles, and leaves nodes that do not come back.

    Args:
        store: keeps where each group stands, and what did not start.
        apps: where groups run.
        order_of: what a group is told, at the rung that the store says.
        record: writes an event.
    """

    def __init__(self, store: Store, apps: Apps, order_of: OrderOf, record: Record) -> None:
        self._store = store
        self._apps = apps
        self._order_of = order_of
        self._record = record
        self._given_up: set[tuple[str, int, int]] = set()
        """Groups (deployment, generation, replica) that are given up, until their deployment is applied again."""
        self._answered: set[str] = set()
        """Applications whose failure has been answered, until they are seen in another state."""
        self._falls: defaultdict[str, list[float]] = defaultdict(list)
        """When each group that was ready has failed, by its name."""
        self._ready: set[str] = set()
        """Groups that have been ready."""
        self._restarts: defaultdict[str, int] = defaultdict(int)
        """Starts in a row that have failed, of groups that have been ready."""
        self._gone: dict[str, float] = {}
        """Nodes that are not part of the fleet, and since when."""

    def has_given_up(self, deployment: str, generation: int, replica: int | None = None) -> bool:
        """Whether a group, or (None) any group of this generation, is not started again until it is applied again."""
        if replica is not None:
            return (deployment, generation, replica) in self._given_up
        return any(group[:2] == (deployment, generation) for group in self._given_up)

    def see(self, nodes: Collection[NodeReport]) -> None:
        """The nodes as they are now."""
        now = time.monotonic()
        self._gone = {node.name: self._gone.get(node.name, now) for node in nodes if not node.joined}

    def started(self, report: GroupReport, desired: Desired | None) -> None:
        """A group is ready: what was remembered against it is no longer so."""
        self._given_up.discard((report.deployment, report.generation, report.replica))
        self._ready.add(report.name)
        self._restarts.pop(report.name, None)
        if desired is not None and desired.generation == report.generation:
            order = self._order_of(desired, report.replica)
            self._store.forget_failure(fingerprint(order.candidate), order.seats[0].node)

    def fell(self, report: GroupReport) -> None:
        """A group has failed. One that has a diagnosis was starting: the ladder's matter, unless it was ready before."""
        if report.diagnosis is not None:
            self._restarts[report.name] += report.name in self._ready
            return
        falls = self._falls[report.name]
        falls.append(time.monotonic())
        falls[:] = [at for at in falls if time.monotonic() - at < BREAKER_S]

    async def run(
        self, apps: Collection[App], desired: Mapping[str, Desired], reports: Mapping[str, GroupReport]
    ) -> tuple[str, ...]:
        """One round.

        Args:
            apps: those of wanted generations.
            desired: what is wanted, by name.
            reports: what each group has said last, by its name.

        Returns:
            Names of deployments that were given up in this round.
        """
        given_up = []
        for app in apps:
            if _group(app) in self._given_up:
                continue
            if app.status == "failed" and app.name not in self._answered:
                self._answered.add(app.name)
                await self._step(app, desired[app.deployment], reports)
            elif app.status != "failed":
                self._answered.discard(app.name)
                await self._stop_circling(app, desired[app.deployment], reports)
            if _group(app) in self._given_up:
                given_up.append(app.deployment)
        await self._leave_gone_nodes(apps, desired)
        return tuple(given_up)

    async def _step(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> None:
        """Down the ladder, where there is a rung left."""
        order = self._order_of(wanted, app.replica)
        report = reports.get(order.name)
        diagnosis = report.diagnosis if report else None
        standing = self._store.rungs(app.deployment, app.generation).get(app.replica, Standing())
        taken = step(wanted.plan.groups[app.replica], standing, diagnosis)
        if taken.verb != "again" and diagnosis is not None:
            self._store.remember(_failed(order, diagnosis))
        self._store.stand(app.deployment, app.generation, app.replica, taken.standing)
        if taken.verb == "end":
            self._given_up.add(_group(app))
            why = (report.detail if report else "") or app.message
            await self._record(app.deployment, app.generation, order.name, "failed", f"{taken.words}. {why}")
            return
        await self._record(app.deployment, app.generation, order.name, "fallback", taken.words)
        await self._apps.deploy(self._order_of(wanted, app.replica))

    async def _stop_circling(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> None:
        """Stop a group that comes up and falls again and again; take one that no longer comes up down its ladder."""
        name = f"{app.deployment}/g{app.generation}/{app.replica}"
        if self._restarts[name] >= RESTARTS:
            self._restarts.pop(name)
            await self._step(app, wanted, reports)
            if _group(app) in self._given_up:
                await self._apps.retire(app.deployment, app.generation, app.replica)
            return
        if len(self._falls[name]) < BREAKER_FAILURES:
            return
        self._given_up.add(_group(app))
        words = (
            f"it came up and failed {BREAKER_FAILURES} times within {BREAKER_S / 60:.0f} minutes, so it is not started"
            " again; `sparkfleet apply` tries once more"
        )
        await self._record(app.deployment, app.generation, name, "failed", words)
        await self._apps.retire(app.deployment, app.generation, app.replica)

    async def _leave_gone_nodes(self, apps: Collection[App], desired: Mapping[str, Desired]) -> None:
        """Move groups off nodes that do not come back, to the first rung of their ladder that needs none of them."""
        gone = {name for name, since in self._gone.items() if time.monotonic() - since >= GONE_S}
        for app in apps if gone else ():
            wanted = desired[app.deployment]
            standing = self._store.rungs(app.deployment, app.generation).get(app.replica, Standing())
            away = gone.intersection(seat.node for seat in self._order_of(wanted, app.replica).seats)
            rung = rung_without(wanted.plan.groups[app.replica], gone, standing.rung)
            if app.status == "retiring" or not away or rung is None or _group(app) in self._given_up:
                continue
            self._store.stand(app.deployment, app.generation, app.replica, Standing(rung=rung))
            order = self._order_of(wanted, app.replica)
            words = f"{', '.join(sorted(away))} is gone; next: {'+'.join(seat.node for seat in order.seats)}"
            await self._record(app.deployment, app.generation, order.name, "fallback", words)
            await self._apps.deploy(order)


def _group(app: App) -> tuple[str, int, int]:
    return app.deployment, app.generation, app.replica


def _failed(order: GroupOrder, diagnosis: Diagnosis) -> Remembered:
    """A failure as it is remembered."""
    return Remembered(
        fingerprint=fingerprint(order.candidate), node=order.seats[0].node, words=str(diagnosis)
    )
