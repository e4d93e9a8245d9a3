"""Scrape targets for Prometheus, in the format of its `http_sd`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from sparkfleet.values import Value


class ScrapeTarget(Value):
    """One endpoint with metrics."""

    job: str
    """"gateway", "controller", or the engine's name."""
    address: str
    """`host:port`."""
    path: str = "/metrics"
    node: str = ""
    deployment: str = ""
    group: str = ""
    rank: int | None = None


class TargetGroup(TypedDict):
    """An element of the list that `http_sd` returns."""

    targets: list[str]
    labels: dict[str, str]


def target_groups(targets: Iterable[ScrapeTarget]) -> list[TargetGroup]:
    """The `http_sd` document: one element per target, in a stable order, labels without a value left out."""
    ordered = sorted(
        targets, key=lambda target: (target.job, target.deployment, target.group, target.address)
    )
    return [{"targets": [target.address], "labels": _labels(target)} for target in ordered]


def _labels(target: ScrapeTarget) -> dict[str, str]:
    labels = {
        "__metrics_path__": target.path,
        "job": target.job,
        "node": target.node,
        "deployment": target.deployment,
        "group": target.group,
        "rank": "" if target.rank is None else str(target.rank),
    }
    return {name: value for name, value in labels.items() if value}
