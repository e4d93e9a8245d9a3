"""What the controller does about groups that do not start, do not stay up, or lie on nodes that are gone.

How far down its ladder a group is, whether it is given up, and what is being started are in the store: a controller that
comes back, or its whole node, goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from sparkfleet.control.apps import Apps
from sparkfleet.control.ladder import instead, passed_by, rung_with_less, rung_without, step, what
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.starts import Starts, went_away
from sparkfleet.control.status import App, GroupReport, NodeReport
from sparkfleet.control.store import Desired, GroupKey, Standing, Store
from sparkfleet.engines.signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.planning.remembered import fingerprint

BREAKER_FAILURES = 5
BREAKER_S = 600.0
"""A group that was ready and failed this often within this time is stopped for good: it would only crash again."""

STARVED = 2
STARVED_S = 3600.0
"""Memory that ran out this often within this time, while a group served, is no accident: it takes a rung that needs less.
The window is long because the load of a large model alone takes a quarter of an hour."""

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
        self._counted: set[GroupKey] = set()
        """Groups whose failed start is counted, and which are yet to be started again: its end, told once more, is not."""
        self._gone: dict[str, float] = {}
        """Nodes that are not part of the fleet, and since when."""
        self._stranded: dict[GroupKey, str] = {}
        """Groups that wait for nodes that have been gone for long, and what is said of that."""

    def has_given_up(self, deployment: str, generation: int, replica: int | None = None) -> bool:
        """Whether a group, or (None) any group of this generation, is not started again until it is applied again."""
        standings = self._store.rungs(deployment, generation)
        return any(one.given_up for at, one in standings.items() if replica in (None, at))

    def passed(self, wanted: Desired) -> tuple[tuple[str, ...], ...]:
        """Of each group of a deployment why it has left the rungs above the one where it stands."""
        standings = self._store.rungs(wanted.name, wanted.generation)
        return tuple(standings.get(at, Standing()).passed for at in range(len(wanted.plan.groups)))

    def stranded(self, wanted: Desired) -> str:
        """What a group of a deployment waits for that may never come; "" where none does."""
        keys = ((wanted.name, wanted.generation, at) for at in range(len(wanted.plan.groups)))
        return next((self._stranded[key] for key in keys if key in self._stranded), "")

    def gone(self) -> frozenset[str]:
        """Nodes that have been away for so long that nothing waits for them that can do without."""
        now = time.monotonic()
        return frozenset(name for name, since in self._gone.items() if now - since >= GONE_S)

    def may_start(self, group: GroupKey) -> bool:
        """Whether a group that nobody starts may be: it is not given up, and no node has yet to say if it took it down."""
        return not self.has_given_up(*group) and not self._starts.is_uncertain(group)

    def see(self, nodes: Collection[NodeReport], began: float) -> None:
        """The nodes as they are now; `began` is when they were begun to be asked, of the monotonic clock."""
        now = time.monotonic()
        self._starts.see(nodes, began)
        self._gone = {node.name: self._gone.get(node.name, now) for node in nodes if not node.joined}

    def starts(self, order: GroupOrder) -> None:
        """A group is about to be started, by the controller or by Serve."""
        self._starts.begin(order)
        self._counted.discard((order.deployment, order.generation, order.replica))

    def ended(self, group: GroupKey) -> None:
        """A group is no longer started: it is stopped."""
        self._starts.end(group)
        self._counted.discard(group)

    def started(self, report: GroupReport, desired: Desired | None) -> None:
        """A group is ready: what was remembered against it is no longer so."""
        group = (report.deployment, report.generation, report.replica)
        self._starts.end(group)
        self._counted.discard(group)
        if desired is not None and desired.generation == report.generation:
            standing = self._standing(group)
            if standing.tries or standing.restarts:
                self._store.stand(*group, standing.model_copy(update={"tries": 0, "restarts": 0}))
            candidate = self._order_of(desired, report.replica).candidate
            self._store.forget_failure(fingerprint(candidate, desired.plan.drivers))

    def fell(self, report: GroupReport) -> None:
        """A group has failed, while it was starting or while it served."""
        group = (report.deployment, report.generation, report.replica)
        standing = self._standing(group)
        if report.rung != standing.rung:
            return  # of a rung that it has left already
        if report.was_starting:
            self._starts.fail(group)
            if group not in self._counted:
                self._store.stand(*group, standing.model_copy(update={"restarts": standing.restarts + 1}))
            return
        self._starts.end(group)
        now = time.time()
        falls = (*(at for at in standing.falls if now - BREAKER_S < at <= now), now)
        starved = tuple(at for at in standing.starved if now - STARVED_S < at <= now)
        if report.diagnosis is not None and report.diagnosis.cause is Cause.MEMORY:
            starved = (*starved, now)
        self._store.stand(*group, standing.model_copy(update={"falls": falls, "starved": starved}))

    async def judge(self, apps: Collection[App], desired: Mapping[str, Desired]) -> tuple[str, ...]:
        """Count starts that took their node down, before anything is started again. Arguments and result as in `run`."""
        there, given_up = {_group(app): app for app in apps}, []
        for group, diagnosis in self._starts.lost().items():
            app, wanted = there.get(group), desired.get(group[0])
            if wanted is None or group[1] != wanted.generation or self.has_given_up(*group):
                self._starts.end(group)
            elif app is None or self._is_under_way(app):
                verb = await self._step(group, wanted, diagnosis, GAVE_UP)
                if verb == "next" and app is not None:
                    await self._deploy(app, wanted)
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
            if app.status != "failed":
                self._answered.discard(app.name)
                await self._stop_circling(app, desired[app.deployment], reports)
            elif app.name not in self._answered and await self._answer(app, desired[app.deployment], reports):
                self._answered.add(app.name)
            if self.has_given_up(*_group(app)):
                given_up.append(app.deployment)
        await self._leave_gone_nodes(apps, desired)
        return tuple(given_up)

    async def _answer(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> str:
        """Once more or down the ladder, where there is a rung left; the verb of the step, "" as long as nodes are asked."""
        verb = "again"
        if app.status != "failed" or _group(app) not in self._counted:
            report = reports.get(_name(app))
            diagnosis, said = (report.diagnosis, report.detail) if report else (None, "")
            if report and not report.was_starting:
                diagnosis = None  # of how it fell while it served, not of why it does not start
            if diagnosis is None or diagnosis.cause in (Cause.TRANSIENT, Cause.UNKNOWN):
                away = self._starts.away(self._order_of(wanted, app.replica))
                if away is None:
                    return ""
                diagnosis, said = (went_away(away), GAVE_UP) if away else (diagnosis, said)
            verb = await self._step(_group(app), wanted, diagnosis, said or app.message)
        if verb != "end":
            await self._deploy(app, wanted)
        return verb

    async def _deploy(self, app: App, wanted: Desired) -> None:
        """Start a group again, at the rung where it stands now."""
        order = self._order_of(wanted, app.replica)
        self._starts.begin(order)
        await self._apps.deploy(order)
        self._counted.discard(_group(app))

    def _is_under_way(self, app: App) -> bool:
        """Whether neither Serve nor the group has said that its start failed: that is answered in `run`."""
        return app.status not in ("failed", "retiring") and not self._starts.has_failed(_group(app))

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
        if taken.verb != "again" and diagnosis is not None and diagnosis.lasts_s:
            mark = fingerprint(order.candidate, wanted.plan.drivers)
            self._store.remember(mark, str(diagnosis), diagnosis.lasts_s)
        self._store.stand(*group, taken.standing)
        if taken.verb == "end":
            self._starts.end(group)
            await self._record(*group[:2], order.name, "failed", f"{taken.words}. {said}")
        else:
            self._starts.begin_anew(self._order_of(wanted, group[2]))
            self._counted.add(group)
            await self._record(*group[:2], order.name, "fallback", taken.words)
        return taken.verb

    async def _stop_circling(self, app: App, wanted: Desired, reports: Mapping[str, GroupReport]) -> None:
        """Stop a group that comes up and falls again and again; take one that no longer comes up down its ladder."""
        standing = self._standing(_group(app))
        if standing.restarts >= RESTARTS and app.status != "running":
            if await self._answer(app, wanted, reports) == "end":
                await self._apps.retire(*_group(app))
            return
        now = time.time()
        if sum(at > now - BREAKER_S for at in standing.falls) < BREAKER_FAILURES:
            rung = rung_with_less(wanted.plan.groups[app.replica], standing.rung, self._gone)
            if sum(at > now - STARVED_S for at in standing.starved) >= STARVED and rung is not None:
                why = f"memory ran out {STARVED} times within {STARVED_S / 60:.0f} minutes while it served"
                await self._move(app, wanted, rung, why)
            return
        self._starts.end(_group(app))
        self._store.stand(*_group(app), standing.model_copy(update={"given_up": True}))
        words = (
            f"it came up and failed {BREAKER_FAILURES} times within {BREAKER_S / 60:.0f} minutes, so it is not started"
            " again; `sparkfleet apply` tries once more"
        )
        await self._record(app.deployment, app.generation, _name(app), "failed", words)
        await self._apps.retire(*_group(app))

    async def _leave_gone_nodes(self, apps: Collection[App], desired: Mapping[str, Desired]) -> None:
        """Move groups off nodes that do not come back, to the first rung of their ladder that needs none of them.

        Where each needs one, that is told, and the group waits: it starts when the node is back.
        """
        gone = self.gone()
        stranded: dict[GroupKey, str] = {}
        for app in apps if gone else ():
            wanted, group = desired[app.deployment], _group(app)
            standing = self._standing(group)
            away = gone.intersection(seat.node for seat in self._order_of(wanted, app.replica).seats)
            if app.status == "retiring" or not away or standing.given_up:
                continue
            names = ", ".join(sorted(away))
            rung = rung_without(wanted.plan.groups[app.replica], gone, standing.rung)
            if rung is not None:
                await self._move(app, wanted, rung, f"{names} is gone")
                continue
            stranded[group] = (
                f"{names} is gone, and no rung of its ladder does without; it starts when that is back"
            )
            if group not in self._stranded:
                await self._record(*group[:2], _name(app), "waits", stranded[group])
        self._stranded = stranded

    async def _move(self, app: App, wanted: Desired, rung: int, why: str) -> None:
        """Start a group at a lower rung, for a reason that is none of its starts'."""
        standing = self._standing(_group(app))
        passed = passed_by(standing, rung, why)
        self._store.stand(*_group(app), Standing(rung=rung, falls=standing.falls, passed=passed))
        self._starts.begin_anew(self._order_of(wanted, app.replica))
        before, after = (wanted.plan.groups[app.replica].ladder[at] for at in (standing.rung, rung))
        cost = instead(before, after)
        words = f"{why}; next: {what(after)}{cost and f', {cost}'}"
        await self._record(app.deployment, app.generation, _name(app), "fallback", words)
        await self._deploy(app, wanted)

    def _standing(self, group: GroupKey) -> Standing:
        return self._store.rungs(*group[:2]).get(group[2], Standing())


def _group(app: App) -> GroupKey:
    return app.deployment, app.generation, app.replica


def _name(app: App) -> str:
    """The name of its group, as the group itself has it."""
    return f"{app.deployment}/g{app.generation}/{app.replica}"
