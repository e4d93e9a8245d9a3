"""The counters and histograms of the gateway and of the controller, made from the catalogue.

Each object registers its metrics in a registry of its own, so that one process can have two of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sparkfleet import __version__
from sparkfleet.errors import Cause
from sparkfleet.telemetry import catalogue
from sparkfleet.telemetry.catalogue import MetricSpec
from sparkfleet.telemetry.loop_series import TimesByModel, Totals
from sparkfleet.telemetry.samples import Sample, SampleCollector, Samples


class PageMetrics:
    """Metrics of one page: the version, and samples of the present state, which are read whenever the page is."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.registry = registry or CollectorRegistry()
        self._read: Samples = tuple
        self.registry.register(SampleCollector(self._samples))
        build_info(self.registry)

    def show(self, read: Samples) -> None:
        """Exports these samples from now on, in place of earlier ones."""
        self._read = read

    def _samples(self) -> Iterable[Sample]:
        return self._read()


class GatewayMetrics(PageMetrics):
    """Counters of one gateway replica."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        registry = self.registry
        self.requests = Totals(catalogue.REQUESTS, registry)
        self.in_flight = Totals(catalogue.IN_FLIGHT, registry)
        self.start_wait = TimesByModel(catalogue.START_WAIT, registry)
        self.ttft = TimesByModel(catalogue.TTFT, registry)
        self.itl = TimesByModel(catalogue.ITL, registry)
        self.duration = TimesByModel(catalogue.DURATION, registry)
        self.tokens = Totals(catalogue.TOKENS, registry)
        self.key_tokens = Totals(catalogue.KEY_TOKENS, registry)
        self.key_requests = Totals(catalogue.KEY_REQUESTS, registry)
        self.chunks = Totals(catalogue.CHUNKS, registry)
        self.errors = Totals(catalogue.ERRORS, registry)
        self.retries = Totals(catalogue.RETRIES, registry)
        self.external = Totals(catalogue.EXTERNAL, registry)
        self.replays = Totals(catalogue.REPLAYS, registry)
        self.certificate_expiry = gauge(catalogue.CERTIFICATE_EXPIRY, registry)


class ControlMetrics(PageMetrics):
    """Metrics of the controller."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        registry = self.registry
        self.starts = counter(catalogue.STARTS, registry)
        self.start = histogram(catalogue.START, registry)
        self.start_phase = histogram(catalogue.START_PHASE, registry)
        self.restarts = counter(catalogue.RESTARTS, registry)
        self.unloads = counter(catalogue.UNLOADED, registry)
        self.canary_failures = counter(catalogue.CANARY_FAILURES, registry)
        self._begun: set[str] = set()
        """Deployments whose counters have begun: every round of the controller needs them."""

    def begin_counters(self, deployment: str) -> None:
        """Lets the counters of a deployment begin at 0.

        Prometheus counts no increase for a series whose first sample is 1, so that an alert would miss the first failure.
        """
        if deployment in self._begun:
            return
        self._begun.add(deployment)
        self.canary_failures.labels(deployment)
        for cause in Cause:
            self.restarts.labels(deployment, cause.value)

    def begin_unloads(self, deployment: str) -> None:
        """The same for the ends of one that is on demand."""
        for reason in catalogue.UNLOADS:
            self.unloads.labels(deployment, reason)


def counter(spec: MetricSpec, registry: CollectorRegistry) -> Counter:
    """A counter of the catalogue."""
    return Counter(spec.family, spec.meaning, spec.labels, registry=registry)


def gauge(spec: MetricSpec, registry: CollectorRegistry) -> Gauge:
    """A gauge of the catalogue."""
    return Gauge(spec.family, spec.meaning, spec.labels, registry=registry)


def histogram(spec: MetricSpec, registry: CollectorRegistry) -> Histogram:
    """A histogram of the catalogue."""
    return Histogram(spec.family, spec.meaning, spec.labels, buckets=spec.buckets, registry=registry)


def build_info(registry: CollectorRegistry) -> None:
    """Add `sparkfleet_build_info{version}`."""
    gauge(catalogue.BUILD_INFO, registry).labels(__version__).set(1)
