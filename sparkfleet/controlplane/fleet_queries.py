"""Queries of the API, of the groups' actors and of Prometheus. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet import __version__
from sparkfleet.controlplane.controller_failures import ControllerFailures
from sparkfleet.controlplane.entry_watch import EntryWatch
from sparkfleet.controlplane.gateway_control import GatewayControl
from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.run_permission import barred_by, is_wanted
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.fleet_snapshot import scrape_targets
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.controlplane.store_safety.copy_distribution import CopyDistribution
from sparkfleet.controlplane.views.metrics_export import canary_samples, fleet_samples, key_samples
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import WRONG_OUTPUT, GroupPhase
from sparkfleet.telemetry.samples import Sample
from sparkfleet.telemetry.targets import TargetGroup

CANARY_FAILURE_S = 3600.0
"""Seconds for which a stop of an engine for its output is shown to Prometheus, which alerts for an hour."""


class FleetQueries:
    """Answers from the present state.

    Args:
        gateways: have the address and the published table.
        entries: have the state of the endpoint's further addresses.
        copies: of the store, on other nodes.
    """

    def __init__(
        self,
        name: str,
        fleet: ObservedFleet,
        watch: NodeWatch,
        gateways: GatewayControl,
        *,
        entries: EntryWatch,
        copies: CopyDistribution,
        failures: ControllerFailures,
    ) -> None:
        self._name = name
        self._fleet = fleet
        self._store = fleet.store
        self._watch = watch
        self._gateways = gateways
        self._entries = entries
        self._copies = copies
        self._failures = failures

    def status(self) -> FleetStatus:
        """Current status of the whole fleet."""
        return FleetStatus(
            fleet=self._name,
            sparkfleet=__version__,
            endpoint=self._gateways.address.endpoint,
            listening=self._gateways.address.listening,
            gateways=self._fleet.reports.gateways(),
            entries=self._entries.reports(),
            nodes=self._watch.reports,
            failures=self._store.failures.all(),
            drained=self._store.drains.nodes(),
            drained_groups=self._store.drains.groups(),
            deployments=tuple(self._deployments()),
            bench=self._store.bench.all(),
            paused=self._fleet.paused,
            last_event=self._store.events.last_id(),
            trouble=self._failures.reported(),
            warnings=(
                *self._failures.warnings.values(),
                *self._watch.overdue(),
                *self._watch.troubles(),
                *self._gateways.warnings(),
                *self._entries.warnings(),
                *self._copies.warnings(),
                *self._unpinned(),
            ),
            uncopied=self._copies.uncopied(),
        )

    def _deployments(self) -> Iterator[DeploymentStatus]:
        """Every deployment, with the draft tokens of its requests."""
        drafts = self._store.drafts.traffic()
        for one in self._gateways.snapshot(self._fleet.running()).deployments():
            counted = drafts.get(one.name)
            yield one.model_copy(update={"drafts": counted}) if counted else one

    def _unpinned(self) -> Iterator[str]:
        """Deployments of an older release that let code of a checkpoint run without a commit."""
        for desired in self._fleet.applied().values():
            for problem in desired.code_problems:
                yield f"{desired.name}: {problem}"

    def samples(self) -> Iterator[Sample]:
        """Samples of the present state, for Prometheus."""
        yield from fleet_samples(self.status(), self._fleet.applied(), self._store.groups.standings())
        yield from key_samples(self._store.keys.all())
        wrong = self._store.events.last_with(
            GroupPhase.FAILED.value, WRONG_OUTPUT, self._store.now() - CANARY_FAILURE_S
        )
        yield from canary_samples(wrong)

    def history(self, name: str) -> tuple[Desired, ...]:
        """The generations of a deployment that are kept, oldest first."""
        return self._store.deployments.history(name)

    def stopped(self) -> tuple[Desired, ...]:
        """The last generation of each deployment that was deleted, as far as it is kept."""
        return self._store.deployments.stopped()

    def targets(self, own: str) -> list[TargetGroup]:
        """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port."""
        return scrape_targets(self._fleet.reports.groups(), self._fleet.reports.gateways(), own)

    def is_still_wanted(self, group: GroupKey, rung: int) -> bool:
        """True if the engine of a group at this rung is to run on, although its actor is being stopped."""
        return is_wanted(self._fleet.state(), group, rung)

    def bars(self, nodes: Sequence[str]) -> str:
        """The reason for which an engine may not start on these nodes now, in words; "" if it may."""
        return barred_by(self._fleet.state(), nodes)
