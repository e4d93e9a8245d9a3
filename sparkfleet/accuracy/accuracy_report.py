"""Report of `sparkfleet accuracy`: errors of predictions, for machines and for people."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import median

from pydantic import Field

from sparkfleet.accuracy.rows import METRICS, PublishedCase
from sparkfleet.perf.prediction import Band
from sparkfleet.values import Value


class ScoredCase(Value):
    """One metric of one row: measured, predicted, and how far apart."""

    case: PublishedCase
    metric: str
    measured: float
    predicted: Band

    @property
    def ape(self) -> float:
        """Absolute error, as a share of the measured value."""
        return abs(self.predicted.mid / self.measured - 1.0)

    @property
    def inside(self) -> bool:
        """True if the measurement is in the band."""
        return self.predicted.low <= self.measured <= self.predicted.high


class Cell(Value):
    """Errors of one metric: `rows` have it, `predicted` of these have a prediction."""

    rows: int
    predicted: int
    median_ape: float | None
    p90_ape: float | None


class Wins(Value):
    """Head-to-heads of one tag: clear ones, those that could be predicted, and those predicted right."""

    rows: int
    decided: int
    right: int


class AccuracyReport(Value):
    """Scores of all rows, and the reasons for rows without one."""

    rows: int
    scored: tuple[ScoredCase, ...]
    metrics: dict[str, dict[str, Cell]]
    declined: dict[str, int]
    assumed: dict[str, int]
    head_to_heads: dict[str, Wins]
    undecided: dict[str, int]
    """Head-to-heads that were not decided, by reason."""
    impossible: tuple[str, ...] = ()
    """Figures that no such machines can reach, each with its reason; they are scored, and never fitted."""
    validation: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Errors of the factors on measurements that they were not fitted to."""

    def json(self) -> str:  # type: ignore[override]  # pydantic's own `json` is deprecated; this is the public contract
        """The contract of `sparkfleet accuracy --json`."""
        body = {
            "version": 1,
            "metrics": {
                m: {s: cell.model_dump() for s, cell in by.items()} for m, by in self.metrics.items()
            },
            "declined": self.declined,
            "assumed": self.assumed,
            "undecided": self.undecided,
            "head_to_heads": {tag: wins.model_dump() for tag, wins in self.head_to_heads.items()},
        }
        return json.dumps(body, indent=2)

    def text(self) -> str:
        """Tables for people: by metric, format, nodes and source; what was declined and assumed."""
        lines = [
            f"{self.rows} rows, {len(self.scored)} predictions, {_share(s.inside for s in self.scored)} inside their band"
        ]
        lines += _metric_lines(self.metrics)
        groups: tuple[tuple[str, Callable[[ScoredCase], str]], ...] = (
            ("format", lambda s: s.case.setup.format),
            ("nodes", lambda s: str(s.case.nodes)),
            ("speculation", lambda s: s.case.setup.method),
            ("source", lambda s: s.case.source),
        )
        for title, key in groups:
            for metric in METRICS:
                of_metric = [s for s in self.scored if s.metric == metric]
                head = f"{metric + ' by ' + title:62}{'rows':>6}{'median':>10}{'p90':>10}{'in band':>8}"
                lines += ["", head, *_group_lines(of_metric, key)] if of_metric else []
        lines += _count_lines("declined", self.declined) + _count_lines("assumed", self.assumed)
        if self.head_to_heads:
            lines += ["", "head-to-heads beyond 1.15", f"  {'':18}{'rows':>6}{'decided':>9}{'right':>7}"]
            lines += [
                f"  {tag:18}{w.rows:6}{w.decided:9}{w.right:7}" for tag, w in self.head_to_heads.items()
            ]
            lines += _count_lines("not decided", self.undecided)
        if self.impossible:
            lines += ["", "impossible on the stated machines (never fitted)"]
            lines += [f"  {figure}" for figure in self.impossible]
        for title, shares in self.validation.items():
            lines += ["", f"factors alone, {title}"]
            lines += [f"  {name:32}{_percent(share):>10}" for name, share in shares.items()]
        return "\n".join(lines)


def cells_of(scored: Iterable[ScoredCase], carried: Counter[tuple[str, str]]) -> dict[str, dict[str, Cell]]:
    """The errors by metric, with and without speculation; `carried` counts the rows that have a figure."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in scored:
        errors[one.metric, kind_of(one.case)].append(one.ape)
    return {
        metric: {spec: _cell(carried[metric, spec], errors[metric, spec]) for spec in ("none", "speculative")}
        for metric in METRICS
    }


def _cell(rows: int, errors: list[float]) -> Cell:
    if not errors:
        return Cell(rows=rows, predicted=0, median_ape=None, p90_ape=None)
    return Cell(
        rows=rows,
        predicted=len(errors),
        median_ape=round(median(errors), 4),
        p90_ape=round(_p90(errors), 4),
    )


def _p90(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def _share(flags: Iterable[bool]) -> str:
    found = list(flags)
    return f"{100 * sum(found) / max(1, len(found)):.0f} %"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _metric_lines(metrics: dict[str, dict[str, Cell]]) -> list[str]:
    lines = ["", f"  {'':26}{'rows':>6}{'predicted':>11}{'median':>10}{'p90':>10}"]
    for metric, by in metrics.items():
        for spec, cell in by.items():
            name = metric + (" (spec.)" if spec == "speculative" else "")
            lines.append(
                f"  {name:32}{cell.rows:>6}{cell.predicted:>7}{_percent(cell.median_ape):>10}{_percent(cell.p90_ape):>10}"
            )
    return lines


def _group_lines(scored: Iterable[ScoredCase], key: Callable[[ScoredCase], str]) -> list[str]:
    groups: dict[str, list[ScoredCase]] = defaultdict(list)
    for one in scored:
        groups[key(one)].append(one)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"  {name[:60]:60}{len(ones):6}{_errors_of(ones)}" for name, ones in ordered]


def _errors_of(scored: list[ScoredCase]) -> str:
    """Median and 90th percentile of the errors, and the share inside the band."""
    errors = [one.ape for one in scored]
    inside = _share(one.inside for one in scored)
    return f"{_percent(median(errors)):>10}{_percent(_p90(errors)):>10}{inside:>8}"


def _count_lines(title: str, counts: dict[str, int]) -> list[str]:
    if not counts:
        return []
    return [
        "",
        title,
        *(f"  {n:5}  {reason}" for reason, n in sorted(counts.items(), key=lambda item: -item[1])),
    ]


def kind_of(case: PublishedCase) -> str:
    """The column of a case: `speculative` or `none`."""
    return "speculative" if case.speculative else "none"
