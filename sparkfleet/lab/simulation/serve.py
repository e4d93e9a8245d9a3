"""Simulated Ray Serve: applications that construct, serve, fail and are replaced as Serve does it.

Of the real one: an application whose first construction fails is given up ("failed"); one that has served is constructed
again and again ("starting"); deploying over an application replaces its replica; a replica is only placed if Ray reaches all
its nodes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

from sparkfleet.controlplane.state.status import App, AppStatus
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.lab.simulation.application import Outcome, SimulatedApp
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.timeline import Timeline

HANG_S = 900.0
"""A start that prints nothing for this long has failed (`SILENCE_S`)."""
DETECT_S = 75.0
"""Seconds until a group finds that its engine hangs."""
BARRED_LOOK_S = 30.0
"""Seconds between two questions of a group that waits for a drained node; the real one asks every second."""
RETRY_S = 5.0
"""Pause of Serve before it constructs a replica again; longer each time, at most a minute."""


@lru_cache
def _listed(deployment: str, generation: int, replica: int, status: AppStatus) -> App:
    return App(deployment=deployment, generation=generation, replica=replica, status=status)


def end_for_call(fleet: SimulatedFleet, key: GroupKey, why: str, asked_at: float) -> None:
    """Ends an engine for a call, which nobody can take back: it may have come up since that was made."""
    engine = fleet.engines.get(key)
    came_up = engine is not None and engine.ready and engine.ready_at > asked_at
    fleet.end(key, f"{why} as it came up" if came_up else why)


class SimulatedServe:
    """Applications by group.

    Args:
        fleet: the machines.
        time: the simulated clock.
        chance: the only source of chance.
        outcome_of: what the next start of a launch comes to.
        send: takes a group's report on its way to the controller.
        repeat: takes one that only repeats what was sent before.
        barred: the reason not to start an engine on these nodes, "" for none; None if the controller does not answer.
        pause: awaited in every call, with its name: others may run meanwhile, the caller's process may end, or the call may
            fail.
        power_off: switches a node off for so many seconds.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        time: Timeline,
        chance: random.Random,
        *,
        outcome_of: Callable[[GroupLaunch], Outcome],
        send: Callable[[GroupReport], None],
        repeat: Callable[[GroupReport], None],
        barred: Callable[[Sequence[str]], str | None],
        pause: Callable[[str], Awaitable[None]],
        power_off: Callable[[str, float], None],
    ) -> None:
        self._fleet = fleet
        self._time = time
        self._chance = chance
        self._outcome_of = outcome_of
        self._send = send
        self._repeat = repeat
        self._barred = barred
        self._pause = pause
        self._power_off = power_off
        self.apps: dict[GroupKey, SimulatedApp] = {}
        self.calls: list[tuple[float, str, GroupKey]] = []
        """Calls of the controller: when, which, of which group."""
        self.began: list[tuple[float, GroupKey, tuple[str, ...]]] = []
        """Engines that were started since the last check while the controller answered: when, of which group, where."""
        self.failures: list[tuple[float, str, GroupKey, int]] = []
        """Failures of engines that groups reported: when, "died" or "did not start", of which group and rung."""
        self.drains_s: Callable[[GroupKey], Awaitable[float]] | None = None
        """Seconds until the requests of a group that is retired have ended, and its engine; None: all end at once."""
        self.published: Callable[[GroupKey], bool] = lambda key: False
        """True if the gateways' table names a group as ready."""
        self.cut: list[tuple[float, GroupKey]] = []
        """Groups that were retired since the last check while the table named them as ready."""
        self.retired: list[tuple[float, SimulatedEngine]] = []
        """Engines of groups that were retired since the last check, and when: they end when their requests have ended."""
        self._actors = 0
        """Actors of groups that were started."""
        self._looked_unix = 0.0
        """Wall clock of its last look at its actors: it looks at none before that."""
        self.wedged: Counter[tuple[GroupKey, int]] = Counter()
        """Starts that took a node down since the group was last ready, by group and rung: those that a controller stored."""

    # calls of the controller

    async def list(self) -> tuple[App, ...]:
        """See `ServeBackend`."""
        found = tuple(_listed(*key, app.status) for key, app in self.apps.items())
        self._looked_unix = max(self._looked_unix, self._time.unix())
        await self._pause("list")
        return found

    async def deploy(self, launch: GroupLaunch) -> None:
        """See `ServeBackend`."""
        asked_at = self._time.seconds
        await self._pause("deploy")
        key = (launch.deployment, launch.generation, launch.replica)
        self.calls.append((self._time.seconds, "deploy", key))
        before = self.apps.get(key)
        if before is not None and before.status == "retiring":
            return  # Serve deletes it; what is deployed over that is lost with it
        if before is not None:
            end_for_call(self._fleet, key, "deployed over", asked_at)
        self.apps[key] = SimulatedApp(launch, construction=before.construction if before else 0)
        self._construct(key)
        await self._pause("deploy")

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """See `ServeBackend`."""
        asked_at = self._time.seconds
        await self._pause("retire")
        key = (deployment, generation, replica)
        self.calls.append((self._time.seconds, "retire", key))
        app = self.apps.get(key)
        if app is None or app.status == "retiring":
            return
        if self.published(key):
            self.cut.append((self._time.seconds, key))
        app.status, app.retired_at = "retiring", self._time.seconds
        app.construction += 1
        engine = self._fleet.engines.get(key)
        if engine is not None and not (engine.ready and engine.ready_at > asked_at):
            self.retired.append((self._time.seconds, engine))
        drains_s = await self.drains_s(key) if self.drains_s is not None else 0.0
        if drains_s:
            self._time.after(drains_s, lambda: self._end_drained(key, app))
        else:
            end_for_call(self._fleet, key, "retired", asked_at)
        self._time.after(drains_s + self._chance.uniform(1, 30), lambda: self._remove(key, app))
        await self._pause("retire")

    async def renew(self) -> None:
        """See `ServeBackend`."""
        await self._pause("renew")
        self._looked_unix = self._time.unix()

    # what happens by itself

    def lose_actor(self, key: GroupKey) -> None:
        """The group's actor is killed, or ends after the loss of a rank's holder; its engine goes on, and the next actor may
        adopt it."""
        app = self.apps.get(key)
        if app is None or app.status in ("retiring", "failed"):
            return
        if (engine := self._fleet.engines.get(key)) is not None:
            engine.unfollowed_since = self._time.seconds
        self._again(key, app)

    def lose_engine(self, key: GroupKey, diagnosis: Diagnosis | None) -> None:
        """The engine died while it served."""
        app = self.apps.get(key)
        self._fleet.end(key, "it died")
        if app is not None and app.status == "running":
            if diagnosis is not None and diagnosis.cause is Cause.MEMORY:
                app.starved.append(self._time.seconds)
            self._fail(key, app, diagnosis, was_starting=False)

    def clear(self) -> None:
        """Ray's head is gone with all applications; engines elsewhere are followed by nobody."""
        for key, app in self.apps.items():
            app.construction += 1
            if (engine := self._fleet.engines.get(key)) is not None:
                engine.unfollowed_since = self._time.seconds
        self.apps = {}

    def heartbeats(self, every_s: float) -> None:
        """Groups repeat their report."""
        for app in self.apps.values():
            due = self._time.seconds - app.last_report_at >= every_s
            if app.report is not None and due and not app.stalled and self._is_reached(app):
                app.last_report_at = self._time.seconds
                self._repeat(app.report)

    def notice_nodes(self) -> None:
        """Replicas that have a rank on a node that Ray does not reach any more are lost."""
        for key, app in list(self.apps.items()):
            if app.phase is not None and app.status != "retiring" and not self._is_reached(app):
                app.phase = app.report = None
                if (engine := self._fleet.engines.get(key)) is not None:
                    engine.unfollowed_since = self._time.seconds
                if app.status != "failed":
                    self._again(key, app)

    # a replica's life

    def _construct(self, key: GroupKey) -> None:
        app = self.apps[key]
        app.construction += 1
        self._actors += 1
        app.actor, app.reports = self._actors, 0
        app.phase = app.report = None
        app.stalled = False
        if app.has_served:
            app.status = "starting"
        self._step(key, app, self._chance.uniform(0.2, 4), self._place)

    def _step(
        self, key: GroupKey, app: SimulatedApp, delay_s: float, step: Callable[[GroupKey, SimulatedApp], None]
    ) -> None:
        construction = app.construction

        def run() -> None:
            if self.apps.get(key) is app and app.construction == construction:
                step(key, app)

        self._time.after(delay_s, run)

    def _place(self, key: GroupKey, app: SimulatedApp) -> None:
        if not self._is_reached(app):
            self._step(key, app, 5.0, self._place)
            return
        self._send_report(key, app, GroupPhase.PREPARING)
        engine = self._fleet.engines.get(key)
        if engine is not None and engine.rung == app.launch.rung and engine.ready and not engine.hurt:
            engine.unfollowed_since = None
            self._step(key, app, 1.0, self._adopt)
            return
        self._fleet.end(key, "left over")
        nodes = app.launch.candidate.shape.nodes
        if words := self._barred(nodes):
            app.barred_since = self._time.seconds
            self._send_report(key, app, GroupPhase.BARRED, detail=words)
            self._step(key, app, BARRED_LOOK_S, self._wait)
            return
        outcome = self._outcome_of(app.launch)
        self._fleet.engines[key] = SimulatedEngine(
            key,
            app.launch.rung,
            app.launch.candidate.shape.nodes,
            app.launch.needs,
            began_at=self._time.seconds,
        )
        is_answered = self._barred(nodes) is not None
        app.stored = is_answered and not any(self._fleet.nodes[node].slow_report for node in nodes)
        if is_answered:
            self.began.append((self._time.seconds, key, nodes))
        self._send_report(key, app, GroupPhase.STARTING)
        comes_up = outcome.serves_s is not None or (outcome.diagnosis is None and not outcome.takes_down)
        ending = self._serve(outcome) if comes_up else self._break(outcome)
        self._step(key, app, outcome.takes_s, ending)

    def _wait(self, key: GroupKey, app: SimulatedApp) -> None:
        """A group that waits for a drained node asks again."""
        if self._barred(app.launch.candidate.shape.nodes):
            self._step(key, app, BARRED_LOOK_S, self._wait)
        else:
            self._place(key, app)

    def _adopt(self, key: GroupKey, app: SimulatedApp) -> None:
        if self._fleet.engines.get(key) is None:
            self._construct(key)
            return
        app.status, app.has_served = "running", True
        self._send_report(key, app, GroupPhase.READY, adopted=True)

    def _serve(self, outcome: Outcome) -> Callable[[GroupKey, SimulatedApp], None]:
        def die(key: GroupKey, app: SimulatedApp) -> None:
            self.lose_engine(key, outcome.diagnosis)

        def run(key: GroupKey, app: SimulatedApp) -> None:
            self._come_up(key, app)
            if outcome.serves_s is not None and app.status == "running":
                self._step(key, app, outcome.serves_s, die)

        return run

    def _come_up(self, key: GroupKey, app: SimulatedApp) -> None:
        engine = self._fleet.engines.get(key)
        if engine is None:  # something took it away while it started
            self._fail(key, app, None, was_starting=True)
            return
        engine.ready, engine.ready_at = True, self._time.seconds
        app.status, app.has_served, app.failures = "running", True, 0
        self.wedged = Counter({at: times for at, times in self.wedged.items() if at[0] != key})
        self._send_report(key, app, GroupPhase.READY, started_s=engine.ready_at - engine.began_at)

    def _break(self, outcome: Outcome) -> Callable[[GroupKey, SimulatedApp], None]:
        def run(key: GroupKey, app: SimulatedApp) -> None:
            if outcome.takes_down:
                name = outcome.takes_down
                # Serve starts what it had again; while no controller works, nobody counts that.
                self.wedged[key, app.launch.rung] += app.stored
                self._power_off(name, self._chance.uniform(60, 240))
                return
            self._fleet.end(key, "its start failed")
            self._fail(key, app, outcome.diagnosis, was_starting=True)

        return run

    def _fail(
        self, key: GroupKey, app: SimulatedApp, diagnosis: Diagnosis | None, *, was_starting: bool
    ) -> None:
        kind = "did not start" if was_starting else "died"
        if (
            diagnosis is None or diagnosis.cause is not Cause.TOOL
        ):  # those are tried again for as long as it takes
            self.failures.append((self._time.seconds, kind, key, app.launch.rung))
        self._send_report(key, app, GroupPhase.FAILED, diagnosis=diagnosis, was_starting=was_starting)
        app.report = None  # its process ends: it repeats nothing
        self._again(key, app)

    def _again(self, key: GroupKey, app: SimulatedApp) -> None:
        app.construction += 1
        app.phase = app.report = None
        if not app.has_served:
            app.status = "failed"
            return
        app.status = "starting"
        app.failures += 1
        self._step(key, app, min(60.0, RETRY_S * app.failures), self._replace)

    def _replace(self, key: GroupKey, app: SimulatedApp) -> None:
        """Starts an actor again once the lost one was looked for, which Serve does by the wall clock."""
        if self._time.unix() < self._looked_unix:
            self._step(key, app, 1.0, self._replace)
        else:
            self._construct(key)

    def _end_drained(self, key: GroupKey, app: SimulatedApp) -> None:
        if self.apps.get(key) is app:
            self._fleet.end(key, "retired")

    def _remove(self, key: GroupKey, app: SimulatedApp) -> None:
        if self.apps.get(key) is app:
            del self.apps[key]

    def _send_report(self, key: GroupKey, app: SimulatedApp, phase: GroupPhase, **fields: object) -> None:
        app.phase = phase
        app.reports += 1
        app.report = GroupReport.model_validate(
            {
                "deployment": key[0],
                "generation": key[1],
                "replica": key[2],
                "phase": phase,
                "node": app.launch.candidate.shape.nodes[0],
                "since": self._time.unix(),
                "rung": app.launch.rung,
                "actor": str(app.actor),
                "number": app.reports,
                "url": "http://127.0.0.1:1",
                **fields,
            }
        )
        self._report(app, app.report)

    def _report(self, app: SimulatedApp, report: GroupReport) -> None:
        app.last_report_at = self._time.seconds
        self._send(report)

    def _is_reached(self, app: SimulatedApp) -> bool:
        return all(self._fleet.nodes[name].joined for name in app.launch.candidate.shape.nodes)
