"""Published tokens per step of two depths or two drafts: how well one gives the other.

`pytest tests/accuracy/test_other_depths.py -s` prints the figures of docs/planner.md and decision 151.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import permutations
from pathlib import Path
from statistics import median

import pytest

import sparkfleet
from sparkfleet.accuracy.rows import PublishedCase, cases_of, read_rows
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.acceptance import CEILING, acceptance, tokens_per_step
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.latency.local_acceptance import CLEARLY, LocalAcceptance, chances_of
from sparkfleet.perf.prediction import Speculation

ROWS = Path(sparkfleet.__file__).parent / "knowledge" / "measurements" / "benchmarks.csv"
Pair = tuple[PublishedCase, PublishedCase]


@pytest.fixture(scope="module")
def drafting() -> list[PublishedCase]:
    """Rows with tokens per step, of drafts whose steps are all counted."""
    found = [one for one in cases_of(read_rows(ROWS)) if isinstance(one, PublishedCase)]
    return [one for one in found if one.yielded and one.setup.k and one.setup.method != "ngram"]


def counted(case: PublishedCase) -> LocalAcceptance:
    """Acceptance as a fleet would know it that had counted a row's steps."""
    assert case.yielded is not None
    wanted = Speculation.model_validate({"method": case.setup.method, "tokens": case.setup.k})
    chances = chances_of(wanted, steps=1.0, proposed=float(case.setup.k), accepted=case.yielded - 1)
    return LocalAcceptance(model="m", method=case.setup.method, tokens=case.setup.k, steps=1, chances=chances)


def pairs(cases: Sequence[PublishedCase], alike: Callable[[PublishedCase], Hashable]) -> list[Pair]:
    groups: dict[Hashable, list[PublishedCase]] = defaultdict(list)
    for one in cases:
        groups[alike(one)].append(one)
    return [pair for group in groups.values() for pair in permutations(group, 2)]


def published(case: PublishedCase) -> float:
    """Tokens per step by published acceptance of the kind of text."""
    return tokens_per_step(acceptance(case.setup, case.workload.content, factors()), case.setup.k)


def errors(found: Sequence[tuple[float, float]]) -> float:
    return median(abs(math.log(predicted / actual)) for predicted, actual in found)


def test_one_depth_gives_another_better_than_publications(drafting: list[PublishedCase]) -> None:
    """Of the same draft, text and load of one source."""
    found = [
        (one, other)
        for one, other in pairs(
            drafting,
            lambda row: (row.source, row.setup.shape.family, row.workload.content, row.setup.method,
                         row.workload.concurrency),
        )
        if one.setup.k != other.setup.k
    ]  # fmt: skip
    by_depth = errors(
        [(counted(one).tokens_per_step(other.setup.k), other.yielded or 0) for one, other in found]
    )
    by_text = errors([(published(other), other.yielded or 0) for _, other in found])
    print(f"{len(found)} pairs of depths: {by_depth:.1%} by the other depth, {by_text:.1%} as published")
    assert len(found) > 100
    assert by_depth < 0.08
    assert by_depth < by_text / 2


def test_too_few_sources_have_two_drafts_on_one_text(drafting: list[PublishedCase]) -> None:
    """If the text of a deployment moves one draft, the others keep their published acceptance (decision 151)."""
    kinds: dict[Hashable, set[str]] = defaultdict(set)
    for row in drafting:
        kinds[row.source, row.setup.method, row.setup.k, row.yielded].add(row.workload.content)
    exact = [
        row for row in drafting if len(kinds[row.source, row.setup.method, row.setup.k, row.yielded]) == 1
    ]  # the others have one figure for texts of several kinds
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for one, other in pairs(exact, lambda row: (row.source, row.setup.shape.family, row.workload.content)):
        if one.setup.method != other.setup.method:
            groups[one.source, one.setup.shape.family, one.workload.content].append((one, other))
    for key, found in groups.items():
        print(key, *(f"{errors([_moved(*pair, share) for pair in found]):.1%}" for share in (0.0, 1.0)))
    texts = {content for _, _, content in groups}
    assert len({source for source, *_ in groups}) <= 2, "then other drafts could follow"
    assert "prose" not in texts, "then there is evidence about a text that is guessed badly"


def _moved(case: PublishedCase, other: PublishedCase, share: float) -> tuple[float, float]:
    """Tokens per step of the other draft if the text moves it by a share of what it moved the first one by; the actual."""

    def logit(chance: float) -> float:
        return math.log(chance / (CEILING - chance))

    first = min(CEILING - 0.01, max(0.02, counted(case).chances[0]))
    by = logit(first) - logit(acceptance(case.setup, "mixed", factors()))
    own = logit(acceptance(other.setup, "mixed", factors())) + share * by
    return tokens_per_step(CEILING / (1 + math.exp(-own)), other.setup.k), other.yielded or 0.0


def test_what_is_advised_was_faster(drafting: list[PublishedCase]) -> None:
    """Ratio of the decode rates of one request with two depths, by the tokens per step of the first alone."""

    def alike(row: PublishedCase) -> Hashable:
        length = round(math.log2(row.workload.prompt + row.workload.depth + 256))
        where = (row.source, row.model, row.quant, row.setup.engine, row.image, row.nodes, row.setup.tp)
        return (*where, row.setup.method, row.workload.content, length)

    measured = [
        row
        for row in drafting
        if row.workload.concurrency == 1 and "decode_tps_per_request" in dict(row.measured)
    ]
    found: list[tuple[float, float]] = []
    for one, other in pairs(measured, alike):
        if one.setup.k == other.setup.k:
            continue
        steps = [model_of(row.setup, factors()).step_s(1, row.workload.context) for row in (one, other)]
        tokens = counted(one).tokens_per_step(other.setup.k) / (one.yielded or 1)
        rates = [dict(row.measured)["decode_tps_per_request"] for row in (one, other)]
        found.append((tokens * steps[0] / steps[1], rates[1] / rates[0]))
    advised = [actual for predicted, actual in found if predicted >= CLEARLY]
    faster = sum(actual > 1 for actual in advised)
    print(f"{len(found)} pairs of rates: {errors(found):.1%}; {faster} of {len(advised)} advised were faster")
    assert len(advised) >= 5
    assert faster >= 0.75 * len(advised)
