"""The counters and histograms of the gateway and of the controller, made from the catalogue.

Each object registers its metrics in a registry of its own, so that one process can have two of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sparkfleet import __version__
from sparkfleet.errors import Cause
from sparkfleet.telemetry import catalogue
from sparkfleet.telemetry.catalogue import MetricSpec
from sparkfleet.telemetry.samples import Sample, SampleCollector, Samples

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class LabelledSeries(Generic[Metric]):
    """Series of a metric by their labels. The library checks and joins the labels at each use.

    Args:
        metric: the metric; no series of it is ever removed.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric: Metric = metric
        self._of: dict[tuple[str, ...], Metric] = {}

    def labels(self, *values: str) -> Metric:
        """The series with these values of its labels."""
        found = self._of.get(values)
        if found is None:
            found = self._of[values] = self._metric.labels(*values)
        return found


class GapHistogram(Collector):
    """Histogram of times between tokens, by model.

    The library's own goes through its buckets one by one: 2 µs for each token.
    """

    def __init__(self, spec: MetricSpec, registry: CollectorRegistry) -> None:
        self._spec = spec
        self.labelnames = spec.labels
        self._of: dict[str, _Gaps] = {}
        registry.register(self)

    def labels(self, model: str) -> _Gaps:
        """The series of a model."""
        found = self._of.get(model)
        if found is None:
            found = self._of[model] = _Gaps(self._spec.buckets)
        return found

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The series as the library exposes them."""
        (family,) = self.describe()
        for model, gaps in tuple(self._of.items()):
            family.add_metric((model,), gaps.cumulated(), gaps.sum_s)
        return (family,)

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The metric without series."""
        return (HistogramMetricFamily(self._spec.name, self._spec.meaning, labels=self._spec.labels),)


class _Gaps:
    """One series. It is only used in the thread of the event loop."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Counts a time."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Upper bounds, as the library writes them, with the number of times up to each."""
        bounds: list[str] = [floatToGoString(one) for one in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


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
        self.requests = LabelledSeries(counter(catalogue.REQUESTS, registry))
        self.in_flight = LabelledSeries(gauge(catalogue.IN_FLIGHT, registry))
        self.start_wait = LabelledSeries(histogram(catalogue.START_WAIT, registry))
        self.ttft = LabelledSeries(histogram(catalogue.TTFT, registry))
        self.itl = GapHistogram(catalogue.ITL, registry)
        self.duration = LabelledSeries(histogram(catalogue.DURATION, registry))
        self.tokens = LabelledSeries(counter(catalogue.TOKENS, registry))
        self.key_tokens = LabelledSeries(counter(catalogue.KEY_TOKENS, registry))
        self.key_requests = LabelledSeries(counter(catalogue.KEY_REQUESTS, registry))
        self.chunks = LabelledSeries(counter(catalogue.CHUNKS, registry))
        self.errors = LabelledSeries(counter(catalogue.ERRORS, registry))
        self.retries = LabelledSeries(counter(catalogue.RETRIES, registry))
        self.external = LabelledSeries(counter(catalogue.EXTERNAL, registry))
        self.replays = LabelledSeries(counter(catalogue.REPLAYS, registry))
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
