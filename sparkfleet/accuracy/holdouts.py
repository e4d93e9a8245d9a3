"""The decisions of `decisions.py`, made with less evidence: regret if the best configuration was not known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from sparkfleet.accuracy.decision_report import DecisionReport, ScoredDecision, percent
from sparkfleet.accuracy.decisions import scored, scored_unseen
from sparkfleet.accuracy.evidence_rows import counted, evidence_in, runs_in
from sparkfleet.accuracy.published import PublishedDecision, decisions_in
from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.published.evidence import PublishedEvidence, RunKey, evidence_from
from sparkfleet.knowledge.published.factors import factors


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


def holdouts(cases: Sequence[PublishedCase], *, rounds: int = 3) -> tuple[Holdout, ...]:
    """The decisions, made with less evidence: half of the rows, half of the sources, without the best one's author, or
    without the model's family for checkpoints in the format of the best.

    Choices are compared with everything that was published. Drafters keep what they have of all rows, and so do factors
    but for those of a family that is left out.

    Args:
        cases: as for `decide`.
        rounds: random halves of each kind; their decisions are taken together.
    """
    asked = decisions_in(cases)
    by_row = _halves(cases, rounds, lambda case: case.id)
    by_source = _halves(cases, rounds, lambda case: case.source)
    runs = runs_in(cases)
    whole = {key: counted(key, of_key, factors()) for key, of_key in runs.items()}
    rows: list[ScoredDecision] = []
    sources: list[ScoredDecision] = []
    authors: list[ScoredDecision] = []
    for one in asked:  # one after the other: its predictions are the same with any evidence, and remembered
        rows += (_scored_with(one, half) for half in by_row)
        sources += (_scored_with(one, half) for half in by_source)
        authors.append(_scored_with(one, _without(one.authors_of_best, runs, whole)))
    families = tuple(scored_unseen(one, given=True) for one in asked)
    return (
        Holdout("half of the rows", DecisionReport(decisions=tuple(rows))),
        Holdout("half of the sources", DecisionReport(decisions=tuple(sources))),
        Holdout("the author of the best", DecisionReport(decisions=tuple(authors))),
        Holdout("the model's family; the format is given", DecisionReport(decisions=families)),
    )


def _halves(
    cases: Sequence[PublishedCase], rounds: int, key: Callable[[PublishedCase], str]
) -> tuple[tuple[PublishedEvidence, ...], ...]:
    """The evidence of each round: of the cases whose key falls into its random half."""
    return tuple(
        evidence_in([case for case in cases if Random(f"{number} {key(case)}").random() < 0.5], factors())  # noqa: S311  # no secret
        for number in range(rounds)
    )


def _without(
    authors: Collection[str],
    runs: Mapping[RunKey, Sequence[PublishedCase]],
    whole: Mapping[RunKey, PublishedEvidence],
) -> Iterator[PublishedEvidence]:
    """The evidence without every row of the sources that published the best combination's speed."""
    for key, cases in runs.items():
        kept = [case for case in cases if case.source not in authors]
        if kept:
            yield whole[key] if len(kept) == len(cases) else counted(key, kept, factors())


def _scored_with(decision: PublishedDecision, runs: Iterable[PublishedEvidence]) -> ScoredDecision:
    with evidence_from(runs):
        return scored(decision)
