"""What the controller does about groups that do not start, do not stay up, or lie on nodes that are gone.

How far down its ladder a group is, whether it is given up, and what is being started are in the store: a controller that
comes back, or its whole node, goes on from there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping

from sparkfleet.control.apps import Apps
from sparkfleet.control.ladder import rung_without, step
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.starts import Starts
from sparkfleet.control.status import App, GroupReport, NodeReport
from sparkfleet.control.store import Desired, GroupKey, Standing, Store
from sparkfleet.engines.signatures import Diagnosis
from sparkfleet.planning.remembered import Remembered, fingerprint

BREAKER_FAILURES = 5
BREAKER_S = 600.0
"""A group that was ready and failed this often within this time is stopped for good: it would only crash again."""

RESTARTS = 3
"""Starts in a row that fail without an end: Serve gives up a group that never started, and goes on with one that has."""

GAVE_UP = "It is not started again, so that the node stays up; `sparkfleet apply` tries once more."
"""What a person is told of a group that took its node down."""

GONE_S = 180.0
"""A node that has been away this long is not waited for where a group can lie elsewhere: a Spark boots in less."""

OrderOf = Callable[[Desired, int], GroupOrder]
Record = Callable[[str, int, str, str, str], Awaitable[None]]
"""Writes an event: deployment, generation, subject, kind, message."""


class Recovery:
    """Goes down ladders, breaks circles, and leaves nodes that do not come back.

    Args:
        store: keeps where each group stands, what is being started, and what did not start.
        apps: where groups run.
        order_of: what a group is told, at the rung that the store says.
        record: writes an event.
        here: the node that this runs on.
    """

    def __init__(self, store: Store, apps: Apps, order_of: OrderOf, record: Record, here: NodeReport) -> None:
        self._store = store
        self._apps = apps
        self._order_of = order_of
        self._record = record
        self._starts = Starts(store, here)
        self._answered: set[str] = set()
        """Applications whose failure has been answered, until they are seen in another state."""
        self._falls: defaultdict[str, list[float]] = defaultdict(list)
        """When each group that was ready has failed, by its name."""
        self._restarts: defaultdict[str, int] = defaultdict(int)
        """Starts in a row that have failed, by the group's name, since a rung was taken for it."""
        self._gone: dict[str, float] = {}
        """Nodes that are not part of the fleet, and since when."""

    def has_given_up(self, deployment: str, generation: int, replica: int | None = None) -> bool:
        """Whether a group, or (None) any group of this generation, is not started again until it is applied again."""
        standings = self._store.rungs(deployment, generation)
        return any(one.given_up for at, one in standings.items() if replica in (None, at))

    def may_start(self, group: GroupKey) -> bool:
        """Whether a group that nobody starts may be: it is not given up, and no node has yet to say if it took it down."""
        return not self.has_given_up(*group) and not self._starts.is_uncertain(group)

    def see(self, nodes: Collection[NodeReport]) -> None:
        """The nodes as they are now."""
        now = time.monotonic()
        self._starts.see(nodes)
        self._gone = {node.name: self._gone.get(node.name, now) for node in nodes if not node.joined}

    def starts(self, order: GroupOrder) -> None:
        """A group is about to be started, by the controller or by Serve."""
        self._starts.begin(order)

    def ended(self, group: GroupKey) -> None:
        """A group is no longer started: it is stopped."""
        self._starts.end(group)

    def started(self, report: GroupReport, desired: Desired | None) -> None:
        """A group is ready: what was remembered against it is no longer so."""
        group = (report.deployment, report.generation, report.replica)
        self._starts.end(group)
        self._restarts.pop(report.name, None)
        if desired is not None and desired.generation == report.generation:
            standing = self._standing(group)
            if standing.tries:
                self._store.stand(*group, standing.model_copy(update={"tries": 0}))
            order = self._order_of(desired, report.replica)
            self._store.forget_failure(fingerprint(order.candidate), order.seats[0].node)

    def fell(self, report: GroupReport) -> None:
        """A group has failed. One that has a diagnosis was starting."""
        self._starts.end((report.deployment, report.generation, report.replica))
        if report.diagnosis is not None:
            self._restarts[report.name] += 1
            return
        falls = self._falls[report.name]
        falls.append(time.monotonic())
        falls[:] = [at for at in falls if time.monotonic() - at < BREAKER_S]

    async def judge(self, apps: Collection[App], desired: Mapping[str, Desired]) -> tuple[str, ...]:
        """Count starts that took their node down, before anything is started again. Arguments and result as in `run`."""
        there, given_up = {_group(app): app for app in apps}, []
        for group, diagnosis in self._starts.lost().items():
            app, wanted = there.get(group), desired.get(group[0])
            if wanted is None or group[1] != wanted.generation or self.has_given_up(*group):
                self._starts.end(group)
            elif app is None or app.status not in ("failed", "retiring"):
                verb = await self._step(group, wanted, diagnosis, GAVE_UP)
                if verb == "next" and app is not None:
                    await self._apps.deploy(self._order_of(wanted, group[2]))
                if verb == "end":
                    given_up.append(group[0])
        return tuple(given_up)

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
            if self.has_given_up(*_group(app)):
                if app.status not in ("failed", "retiring"):
                    # It took its node down, or the controller died before it had stopped it.
                    await self._apps.retire(*_group(app))
                continue
            if app.status == "failed" and app.name not in self._answered:
                self._answered.add(app.name)
                await self._answer(app, desired[app.deployment], reports)
            elif app.status != "failed":
                self._answered.discard(app.name)
                await self._stop_circling(app, desired[app.deployment], reports)
            if self.has_given_up(*_group(app)):
                given_up.append(app.deployment)
        await self._leave_gone_nodes(apps, desired)
        return tuple(given_up)

    async def _answer(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> str:
        """Once more or down the ladder, where there is a rung left; the verb of the step."""
        report = reports.get(_name(app))
        diagnosis = (report.diagnosis if report else None) or self._starts.lost().get(_group(app))
        verb = await self._step(
            _group(app), wanted, diagnosis, (report.detail if report else "") or app.message
        )
        if verb != "end":
            await self._apps.deploy(self._order_of(wanted, app.replica))
        return verb

    async def _step(self, group: GroupKey, wanted: Desired, diagnosis: Diagnosis | None, said: str) -> str:
        """Count a start that failed, and keep where the group stands now; the verb of the step.

        Args:
            group: which.
            wanted: its deployment.
            diagnosis: why it failed, where that is known.
            said: what a person is told where there is no rung left.
        """
        order = self._order_of(wanted, group[2])
        taken = step(wanted.plan.groups[group[2]], self._standing(group), diagnosis)
        if taken.verb != "again" and diagnosis is not None:
            self._store.remember(_failed(order, diagnosis))
        self._restarts.pop(order.name, None)
        self._store.stand(*group, taken.standing)
        if taken.verb == "end":
            self._starts.end(group)
            await self._record(*group[:2], order.name, "failed", f"{taken.words}. {said}")
        else:
            self._starts.begin_anew(self._order_of(wanted, group[2]))
            await self._record(*group[:2], order.name, "fallback", taken.words)
        return taken.verb

    async def _stop_circling(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> None:
        """Stop a group that comes up and falls again and again; take one that no longer comes up down its ladder."""
        name = _name(app)
        if self._restarts[name] >= RESTARTS:
            if await self._answer(app, wanted, reports) == "end":
                await self._apps.retire(*_group(app))
            return
        if len(self._falls[name]) < BREAKER_FAILURES:
            return
        self._starts.end(_group(app))
        self._store.stand(*_group(app), self._standing(_group(app)).model_copy(update={"given_up": True}))
        words = (
            f"it came up and failed {BREAKER_FAILURES} times within {BREAKER_S / 60:.0f} minutes, so it is not started"
            " again; `sparkfleet apply` tries once more"
        )
        await self._record(app.deployment, app.generation, name, "failed", words)
        await self._apps.retire(*_group(app))

    async def _leave_gone_nodes(self, apps: Collection[App], desired: Mapping[str, Desired]) -> None:
        """Move groups off nodes that do not come back, to the first rung of their ladder that needs none of them."""
        gone = {name for name, since in self._gone.items() if time.monotonic() - since >= GONE_S}
        for app in apps if gone else ():
            wanted = desired[app.deployment]
            standing = self._standing(_group(app))
            away = gone.intersection(seat.node for seat in self._order_of(wanted, app.replica).seats)
            rung = rung_without(wanted.plan.groups[app.replica], gone, standing.rung)
            if app.status == "retiring" or not away or rung is None or standing.given_up:
                continue
            self._store.stand(*_group(app), Standing(rung=rung))
            order = self._order_of(wanted, app.replica)
            self._starts.begin_anew(order)
            words = f"{', '.join(sorted(away))} is gone; next: {'+'.join(seat.node for seat in order.seats)}"
            await self._record(app.deployment, app.generation, order.name, "fallback", words)
            await self._apps.deploy(order)

    def _standing(self, group: GroupKey) -> Standing:
        return self._store.rungs(*group[:2]).get(group[2], Standing())


def _group(app: App) -> GroupKey:
    return app.deployment, app.generation, app.replica


def _name(app: App) -> str:
    """The name of its group, as the group itself has it."""
    return f"{app.deployment}/g{app.generation}/{app.replica}"


def _failed(order: GroupOrder, diagnosis: Diagnosis) -> Remembered:
    """A failure as it is remembered."""
    return Remembered(
        fingerprint=fingerprint(order.candidate), node=order.seats[0].node, words=str(diagnosis)
    )
