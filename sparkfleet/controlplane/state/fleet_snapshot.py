"""Snapshot of the fleet for the gateways' table, for `status` and for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from sparkfleet.controlplane.state.capabilities import external_entries, group_entry
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import (
    GROUP_DEPLOYMENT,
    App,
    DeploymentStatus,
    OnDemandStatus,
    app_name,
)
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, ModelState
from sparkfleet.group.group_name import GroupKey, name_of, short_name
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.telemetry.targets import ScrapeTarget, TargetGroup, target_groups

RETRY_AFTER_S = 10
"""`Retry-After` while a deployment starts, seconds, if the duration of its start is not known."""


@dataclass(frozen=True)
class FleetSnapshot:
    """Desired state, Serve's applications and reports of groups."""

    desired: Mapping[str, Desired]
    apps: Collection[App]
    reports: Collection[GroupReport]
    """The newest report of each group, however old."""
    fresh: Collection[GroupReport]
    """The reports that are recent enough to count."""
    failed: Collection[str]
    """Deployments of which a group is given up."""
    published: Mapping[str, GroupEntry] = field(default_factory=dict)
    """Entry of each application in the last table: all that is known of groups whose plan was replaced."""
    passed: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """By deployment, for each group: the reasons for leaving the rungs above its current one."""
    running: Mapping[str, tuple[RunningGroup, ...]] = field(default_factory=dict)
    """By deployment, the groups that run, older ones too; left out for the table."""
    last_served: Mapping[str, Desired] = field(default_factory=dict)
    """Of a deployment with a group that is given up: the last generation before it that served."""
    startable: Mapping[str, int] = field(default_factory=dict)
    """By deployment on demand with a group that is given up: the generation that serves or starts with its next request; the
    desired one if other groups of that do."""
    returning: Mapping[str, int] = field(default_factory=dict)
    """Generations that are about to start again, because the newer one did not."""
    stranded: Mapping[str, str] = field(default_factory=dict)
    """By deployment: nodes that one of its groups waits for and that may never return, in words; "" if there are none."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """By deployment: nodes of its groups that do not answer now, in words, with the start of a group that does not serve; ""
    if all do."""
    keyless: Mapping[str, str] = field(default_factory=dict)
    """In words, deployments that list keys of which none may use them."""
    ready_at: Mapping[str, float] = field(default_factory=dict)
    """By deployment with a start under way: Unix seconds at which it will probably have ended."""
    drained: Collection[GroupKey] = frozenset()
    """Groups that get no new requests."""
    unloaded: Mapping[str, str] = field(default_factory=dict)
    """Deployments on demand that are not to run now, with what their start depends on, in words."""
    demand: Mapping[str, OnDemandStatus] = field(default_factory=dict)
    """Use of each deployment on demand; left out for the table."""
    stopped: Mapping[str, Desired] = field(default_factory=dict)
    """Deployments that `up` starts again: the fleet is being taken down."""

    def serving(self, name: str, without: GroupKey | None = None) -> tuple[App, ...]:
        """The groups that are ready and serve: the desired ones, and older ones until every desired one is ready."""
        ready = self._ready()
        able = [
            app
            for app in self.apps
            if app.deployment == name
            and app.status != "retiring"
            and app.group in ready
            and app.group != without
        ]
        desired = self.desired.get(name)
        own = [app for app in able if desired is not None and app.group in desired.groups]
        is_whole = desired is not None and len(own) == len(desired.groups)
        return tuple(sorted(own if is_whole else able, key=lambda app: (app.generation, app.replica)))

    def all_reported(self) -> bool:
        """True if every running application has a group that reported it."""
        ready = self._ready()
        return all(app.group in ready for app in self.apps if app.status == "running")

    def models(self, without: GroupKey | None = None) -> dict[str, ModelEntry]:
        """The gateways' table without the group `without`."""
        # They are listed until the gateway has ended, too: a client asks again after a 503, and never after a 404.
        stopped = {name: _stopped_entry(desired) for name, desired in self.stopped.items()}
        return stopped | {name: self._entry(desired, without) for name, desired in self.desired.items()}

    def deployments(self) -> tuple[DeploymentStatus, ...]:
        """Every deployment that is desired or still has a group."""
        names = sorted({*self.desired, *(app.deployment for app in self.apps)})
        return tuple(
            self._wanted(self.desired[name]) if name in self.desired else self._unwanted(name)
            for name in names
        )

    def _ready(self) -> set[GroupKey]:
        return {r.group for r in self.fresh if r.phase is GroupPhase.READY}

    def _entry(self, desired: Desired, without: GroupKey | None) -> ModelEntry:
        serving = self.serving(desired.name, without)
        groups = self._group_entries(desired, serving)
        state: ModelState = "ready"
        detail = ""
        if not serving:
            state, detail = self._not_ready(desired)
            if state != "failed" and (words := self._drained_start(desired)):
                state, detail = "drained", words
        elif not any(group.ready for group in groups):
            state, detail = "drained", self._drained_words(serving)
        return ModelEntry(
            name=desired.name,
            groups=groups,
            external=external_entries(desired.spec),
            deployment=GROUP_DEPLOYMENT,
            state=state,
            detail=detail,
            retry_after_s=RETRY_AFTER_S,
            ready_at=None if serving else self.ready_at.get(desired.name),
            created=int(desired.since),
            context=max((group.context for group in groups if group.context is not None), default=None),
            keys=desired.spec.keys or (),
            media_domains=desired.spec.media_domains,
            endpoints=desired.spec.endpoints,
            aliases=desired.spec.aliases,
            loop_tokens=desired.spec.loop_tokens,
            replay=desired.spec.replay,
            on_demand=desired.spec.on_demand,
        )

    def _group_entries(self, desired: Desired, serving: Iterable[App]) -> tuple[GroupEntry, ...]:
        """The planned groups, and older ones that serve until these are ready. Drained ones are not ready."""
        starts = self._starting(desired)
        ready = {app.name for app in serving if app.group not in self.drained}
        reports = {app_name(*report.group): report for report in self.reports}
        names = [app_name(*group) for group in starts.groups]
        planned = [
            group_entry(app, starts, at, one.rung, one.measured)
            if (one := reports.get(app))
            else group_entry(app, starts, at, 0)
            for at, app in enumerate(names)
        ]
        older = [self._older_entry(app) for app in serving if app.name not in names]
        return tuple(one.model_copy(update={"ready": one.app in ready}) for one in (*planned, *older))

    def _older_entry(self, app: App) -> GroupEntry:
        """The entry of a group whose plan was replaced: that of the last table, or of the generation that serves again."""
        served = self.last_served.get(app.deployment)
        if served is None or app.group not in served.groups:
            return self.published.get(app.name, GroupEntry(app=app.name))
        report = next((one for one in self.reports if one.group == app.group), None)
        at = served.groups.index(app.group)
        if report is None:
            return group_entry(app.name, served, at, 0)
        return group_entry(app.name, served, at, report.rung, report.measured)

    def _starting(self, desired: Desired) -> Desired:
        """The generation of a deployment that starts: on demand the one before if the desired one did not."""
        served = self.last_served.get(desired.name)
        number = self.startable.get(desired.name, desired.generation)
        return served if served is not None and served.generation == number else desired

    def _not_ready(self, desired: Desired) -> tuple[Literal["failed", "starting", "unloaded"], str]:
        if desired.name in self.failed and desired.name not in self.startable:
            older = [
                app.generation for app in self.apps if app.deployment == desired.name and self._is_older(app)
            ]
            again = f"; generation {max(older)} {self._restart_words(desired.name)}" if older else ""
            if desired.name in self.returning:
                again = f"; generation {self.returning[desired.name]}, which served before, starts again"
            return (
                "failed",
                f"its engine did not start{again}; `sparkfleet describe {desired.name}` shows the reason",
            )
        if desired.name in self.unloaded:
            return "unloaded", self._drained_start(desired) or self.unloaded[desired.name]
        if (starts := self._starting(desired)) is not desired:
            served = f"generation {starts.generation}, which served before"
            words = f"generation {desired.generation} did not start; {served}, starts"
            return "starting", f"{words}; `sparkfleet describe {desired.name}` shows the reason"
        if waits := self.stranded.get(desired.name):
            return "failed", waits
        if lost := self.lost.get(desired.name):
            return "starting", lost
        return "starting", self._start_words(desired)

    def _start_words(self, desired: Desired) -> str:
        """The start of a deployment of which no group serves, in words."""
        reports = [one for one in self.fresh if one.deployment == desired.name]
        own = [one for one in reports if one.group in desired.groups]
        if begun := [one.phase for one in own if one.phase is not GroupPhase.READY]:
            return f"its group is {begun[0].value}"
        there = (GroupPhase.READY, GroupPhase.DRAINING)
        ending = [one.generation for one in reports if one not in own and one.phase in there]
        return f"generation {max(ending)} ends first" if ending and not own else "its group is being placed"

    def _restart_words(self, name: str) -> str:
        """Activity of an older group of a deployment that does not serve, in words."""
        held = [one.detail for one in self.fresh if one.deployment == name and one.phase is GroupPhase.BARRED]
        return f"waits: {held[0]}" if held else "is restarting"

    def _wanted(self, desired: Desired) -> DeploymentStatus:
        state, detail = self._state(desired)
        return DeploymentStatus(
            name=desired.name,
            generation=desired.generation,
            state=state,
            detail=detail,
            on_demand=desired.spec.on_demand,
            demand=self.demand.get(desired.name),
            who=desired.who,
            since=desired.since,
            plan=desired.plan,
            groups=self._groups(desired.name),
            passed=self.passed.get(desired.name, ()),
            spec=desired.spec_json,
            members=tuple(group[1:] for group in desired.groups),
            instead=None if (starts := self._starting(desired)) is desired else starts.generation,
            running=self.running.get(desired.name),
        )

    def _unwanted(self, name: str) -> DeploymentStatus:
        return DeploymentStatus(
            name=name,
            generation=max(app.generation for app in self.apps if app.deployment == name),
            state="stopping",
            detail="",
            who="",
            since=0.0,
            plan=None,
            groups=self._groups(name),
        )

    def _state(
        self, desired: Desired
    ) -> tuple[Literal["ready", "starting", "updating", "failed", "unloaded"], str]:
        serving, wanted = self.serving(desired.name), desired.generation
        if not serving:
            state, detail = self._not_ready(desired)
            urls = ", ".join(dict.fromkeys(one.url for one in desired.spec.external))
            return state, f"{detail}; meanwhile requests go to {urls}" if urls else detail
        own, groups = [app for app in serving if app.group in desired.groups], len(desired.plan.groups)
        older = _short_names(app for app in serving if app not in own)
        now = max(app.generation for app in serving)
        if desired.name in self.failed:
            still = f"{len(own)} of {groups} groups serve" if own else f"generation {now} serves"
            more = f", and {older} of the generation before" if own and older else ""
            return "failed", f"generation {wanted} did not start; {still}{more}"
        waits = self.stranded.get(desired.name)
        if not own:
            words = f"generation {now} serves until {wanted} is ready"
            return ("failed", f"{words}: {waits}") if waits else ("updating", words)
        if len(own) < groups:
            words = f"{len(own)} of {groups} groups serve"
            if older and not waits:
                return "updating", f"{words}; {older} of the generation before until the next one is ready"
            lost = self.lost.get(desired.name)
            return (
                ("failed", f"{words}: {waits}")
                if waits
                else ("starting", f"{words}: {lost}" if lost else words)
            )
        return "ready", (
            self.lost.get(desired.name)
            or self.keyless.get(desired.name)
            or self._drained_words(serving)
            or self._trouble(desired)
        )

    def _drained_words(self, serving: Sequence[App]) -> str:
        """The drained ones of the groups that serve, in words with the command; "" if there are none."""
        drained = {app.group for app in serving if app.group in self.drained}
        names = sorted({report.name for report in self.reports if report.group in drained})
        if not names:
            return ""
        which = "every group is drained" if len(names) == len(serving) else f"{', '.join(names)} is drained"
        return f"{which}; `sparkfleet undrain {names[0]}` brings it back"

    def _drained_start(self, desired: Desired) -> str:
        """The drained groups of a deployment on demand, which no request starts, in words; "" if one does."""
        groups = self._starting(desired).groups
        if not desired.spec.on_demand or not all(group in self.drained for group in groups):
            return ""
        names = [name_of(group) for group in groups]
        are = "is" if len(names) == 1 else "are"
        return f"{', '.join(names)} {are} drained; `sparkfleet undrain {names[0]}` lets its next request start it"

    def _trouble(self, desired: Desired) -> str:
        """Trouble that a ready group reports, in words; "" for none."""
        ready = (r for r in self.fresh if r.phase is GroupPhase.READY and r.group in desired.groups)
        return next((report.detail for report in ready if report.detail), "")

    def _is_older(self, app: App) -> bool:
        """True if an application belongs to an earlier generation and Serve keeps it running."""
        wanted = self.desired.get(app.deployment)
        return wanted is not None and app.group not in wanted.groups and app.status in ("starting", "running")

    def _groups(self, name: str) -> tuple[GroupReport, ...]:
        return tuple(sorted((r for r in self.reports if r.deployment == name), key=lambda r: r.name))


def _stopped_entry(desired: Desired) -> ModelEntry:
    return ModelEntry(
        name=desired.name,
        deployment=GROUP_DEPLOYMENT,
        state="stopped",
        detail="the fleet is being taken down",
        retry_after_s=RETRY_AFTER_S,
        created=int(desired.since),
        keys=desired.spec.keys or (),
        aliases=desired.spec.aliases,
        on_demand=desired.spec.on_demand,
    )


def _short_names(apps: Iterable[App]) -> str:
    return " and ".join(short_name(app.group) for app in apps)


def scrape_targets(
    reports: Iterable[GroupReport], gateways: Iterable[GatewayReport], own: str
) -> list[TargetGroup]:
    """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port.

    Engines answer with the token in `FleetPaths.metrics_token` only; a custom workload's metrics are unknown.
    """
    engines = [
        ScrapeTarget(
            job=report.engine,
            address=urlsplit(report.url).netloc,
            path=path,
            node=report.node,
            deployment=report.deployment,
            group=report.name,
            rank=0,
        )
        for report in reports
        if report.phase is GroupPhase.READY and (path := engine_by_name(report.engine).metrics_path)
    ]
    doors = [ScrapeTarget(job="gateway", address=urlsplit(g.metrics_url).netloc) for g in gateways]
    return target_groups([ScrapeTarget(job="controller", address=own), *doors, *engines])
