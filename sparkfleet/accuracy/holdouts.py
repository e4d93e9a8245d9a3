"""The decisions of `decisions.py`, made with less evidence: regret where the best configuration was not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from sparkfleet.accuracy.decisions import DecisionReport, ScoredDecision, percent, scored, scored_unseen
from sparkfleet.accuracy.evidence_rows import evidence_in
from sparkfleet.accuracy.physical_gate import possible
from sparkfleet.accuracy.published import PublishedDecision, decisions_in
from sparkfleet.accuracy.rows import PublishedCase, cases_of, read_rows
from sparkfleet.knowledge.measurements import BENCHMARKS
from sparkfleet.knowledge.published.evidence import evidence_from
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.predictor import predictor_of


class Holdout(NamedTuple):
    """One table of decisions made with less evidence."""

    title: str
    """The evidence that is left out."""
    report: DecisionReport


def holdout_table(found: Sequence[Holdout]) -> str:
    """The summaries as a Markdown table."""
    lines = [
        "| left out of the evidence | decisions | regret, median | 90th percentile | unpublished | refused or unknown |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        all_ = one.report.summary
        shares = (percent(all_[name]) for name in ("median_regret", "p90_regret", "unproven"))
        none = (all_["refused"] or 0) + (all_["unknown"] or 0)
        lines.append(f"| {one.title} | {all_['decisions']} | {' | '.join(shares)} | {none} |")
    return "\n".join(lines)


def holdouts(rows_path: Path | None = None, *, rounds: int = 3) -> tuple[Holdout, ...]:
    """The decisions, made with less evidence: half of the rows, half of the sources, without the best one's author, or
    without the model's family for checkpoints in the format of the best.

    Choices are compared with everything that was published. Drafters keep what they have of all rows, and so do factors
    but for those of a family that is left out.

    Args:
        rows_path: as for `decide`.
        rounds: random halves of each kind; their decisions are taken together.
    """
    cases = [*map(possible, cases_of(read_rows(rows_path or BENCHMARKS)))]
    asked = decisions_in(cases)
    return (
        Holdout("half of the rows", _with_half(asked, cases, rounds, lambda case: case.id)),
        Holdout("half of the sources", _with_half(asked, cases, rounds, lambda case: case.source)),
        Holdout("the author of the best", _without_authors(asked, cases)),
        Holdout(
            "the model's family; the format is given",
            DecisionReport(decisions=tuple(scored_unseen(one, given=True) for one in asked)),
        ),
    )


def _with_half(
    asked: Sequence[PublishedDecision],
    cases: Sequence[PublishedCase],
    rounds: int,
    key: Callable[[PublishedCase], str],
) -> DecisionReport:
    """The decisions of each round, made with the cases whose key falls into its random half."""
    found: list[ScoredDecision] = []
    for number in range(rounds):
        kept = [case for case in cases if Random(f"{number} {key(case)}").random() < 0.5]  # noqa: S311  # no secret
        found += _decided_with(asked, kept)
    return DecisionReport(decisions=tuple(found))


def _without_authors(asked: Sequence[PublishedDecision], cases: Sequence[PublishedCase]) -> DecisionReport:
    """Each decision, made without every row of the sources that published the best combination's speed."""
    found: list[ScoredDecision] = []
    for one in asked:
        authors = one.authors_of_best
        found += _decided_with((one,), [case for case in cases if case.source not in authors])
    return DecisionReport(decisions=tuple(found))


def _decided_with(
    asked: Sequence[PublishedDecision], cases: Sequence[PublishedCase]
) -> tuple[ScoredDecision, ...]:
    predictor_of.cache_clear()
    with evidence_from(evidence_in(cases, factors())):
        return tuple(map(scored, asked))
