"""Samples of the present state, and the collector that exports them. A sample has the labels of its metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sparkfleet.telemetry.catalogue import CATALOGUE, MetricSpec

MetricFamily = CounterMetricFamily | GaugeMetricFamily


class Sample(NamedTuple):
    """One value of a gauge or a counter. `labels` are in the order of the catalogue."""

    metric: MetricSpec
    labels: tuple[str, ...]
    value: float


Samples = Callable[[], Iterable[Sample]]


def sample(metric: MetricSpec, *labels: str, value: float) -> Sample:
    """A sample with as many labels as its metric has. Raises ValueError if their number is another one."""
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
    return Sample(metric, labels, float(value))


class SampleCollector(Collector):
    """Reads samples whenever the page is read, so that it never shows what no longer exists."""

    def __init__(self, read: Samples) -> None:
        self._read = read

    def collect(self) -> Iterator[MetricFamily]:
        """Families in the order of the catalogue."""
        found: dict[str, list[Sample]] = {}
        for one in self._read():
            found.setdefault(one.metric.name, []).append(one)
        for spec in CATALOGUE:
            if spec.name in found:
                yield _family(spec, found[spec.name])

    def describe(self) -> Iterator[MetricFamily]:
        """Empty: the samples are not read before the first request."""
        return iter(())


def family_of(spec: MetricSpec) -> MetricFamily:
    """A counter or a gauge without series."""
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    return kind(spec.family, spec.meaning, labels=spec.labels)


def _family(spec: MetricSpec, samples: Iterable[Sample]) -> MetricFamily:
    family = family_of(spec)
    for one in samples:
        family.add_metric(one.labels, one.value)
    return family
