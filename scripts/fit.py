"""Fit `sparkfleet/knowledge/published/factors.yaml` to published measurements, and print how good it is on left-out rows.

    python scripts/fit.py                    fit, validate, write factors.yaml, print the tables of docs/planner.md
    python scripts/fit.py --thorough         also leaves runs and families of models out (three times as long)
    python scripts/fit.py --dry-run          the same without writing
    python scripts/fit.py --head-to-heads FILE    also prints how many head-to-heads held-out predictions get right
    python scripts/fit.py --rows FILE --configs FILE

Method. Physics (perf/latency/roofline_terms.py) gives every measurement a sum of terms in seconds. One
maximum-a-posteriori fit in the
logarithm of time then finds, all at once:

    coefficients   log-normal priors around what the ceilings suggest
    acceptance     logits by method, content, family, with normal priors around typical values
    effects        one per key (factor_keys.py), shrunk to zero by a ridge: rare cells keep the general ones' values

Errors count as in a Cauchy distribution (patched stacks and boots differ by 2x), and a source with n rows counts as n^0.65
of them. Validation repeats the whole fit without each group of sources (LOSO), of runs, and of families of models (LOMO);
head-to-heads are scored by fits that had not seen the rows of their source. Bands are the 80 % quantiles of errors on what
sources that were left out show, by how much was known about the setup; a source with n rows counts as √n.

fitting/priors.py       what is expected before anything was measured
fitting/problems.py     measurements as matrices
fitting/solver.py       the most probable coefficients, acceptance and effects
fitting/factoring.py    both fits, as factors and as a file
fitting/validation.py   errors and head-to-heads on what was left out

Needs numpy; the package itself does not.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
from collections.abc import Sequence
from pathlib import Path

from fitting.factoring import case_errors, fit, write
from fitting.problems import cases_of, run_of
from fitting.validation import (
    bands_of,
    by_source,
    coverage,
    head_to_heads,
    left_out,
    medians,
    noise_floor,
    table,
)

from sparkfleet.accuracy.physical_gate import impossible, possible
from sparkfleet.accuracy.rows import PublishedCase

KNOWLEDGE = Path(__file__).parents[1] / "sparkfleet" / "knowledge"


def arguments() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=KNOWLEDGE / "measurements" / "benchmarks.csv")
    parser.add_argument("--configs", type=Path, default=KNOWLEDGE / "measurements" / "configs.json")
    parser.add_argument("--head-to-heads", type=Path)
    parser.add_argument("--thorough", action="store_true", help="also leaves runs and families of models out")
    parser.add_argument("--folds", type=int, default=12, help="groups that are left out, one after the other")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def print_impossible(cases: Sequence[PublishedCase]) -> None:
    """The figures that are not fitted, because no such machines can reach them, each with its reason."""
    print("\nnot fitted: no such machines can reach it")
    for case in cases:
        for metric, reason in impossible(case).items():
            print(f"  {case.id} {case.source[:40]:40} {case.model[:34]:34} {metric:22} {reason}")


def main() -> None:
    """Fit, validate, print, write."""
    args = arguments()
    published = cases_of(args.rows, args.configs)
    print_impossible(published)
    cases = [case for case in map(possible, published) if case.measured]
    whole = fit(cases, lambda _: True)
    table("in sample", [(c, m, e, "") for c in cases for m, e in case_errors(c, whole.factors).items()])
    loso, unseen = left_out(cases, lambda c: c.source, args.folds, whole)
    biggest = collections.Counter(c.source for c in cases).most_common(1)[0][0]
    table("leave one source out", loso)
    table("leave one source out, one request", loso, lambda c: c.workload.concurrency == 1)
    table("leave one source out, the text is known", loso, lambda c: c.workload.content != "mixed")
    table("leave one source out, two nodes and more", loso, lambda c: c.setup.tp * c.setup.pp > 1)
    table(f"leave one source out, without {biggest}", loso, lambda c: c.source != biggest)
    if args.head_to_heads:
        configs = json.loads(args.configs.read_text())
        print("\nhead-to-heads beyond 1.15, in sample")
        head_to_heads(args.head_to_heads, configs, lambda _: whole.factors)
        print("\nhead-to-heads beyond 1.15, fitted without the rows of their source")
        head_to_heads(args.head_to_heads, configs, lambda source: unseen.get(source, whole.factors))
    if args.thorough:
        runs, _ = left_out(cases, run_of, args.folds, whole)
        table("leave one run (source, model, format) out", runs)
        table("leave one model out", left_out(cases, lambda c: c.setup.shape.family, args.folds, whole)[0])
    noise_floor(cases)
    bands = bands_of(loso)
    print("\nbands", bands)
    inside = coverage(loso, bands)
    print("share of left-out sources' rows in their band", inside)
    validation = {
        "sources left out, median of rows": medians(loso),
        "sources left out, median of sources": by_source(loso),
        "sources left out, without the largest": medians(loso, lambda c: c.source != biggest),
        "sources left out, share inside the 80 % bands": inside,
    }
    print("each source as one", validation["sources left out, median of sources"])
    if not args.dry_run:
        done = fit(cases, lambda _: True, start=whole, bands=bands)
        found = done.factors.model_copy(update={"validation": validation})
        write(found, KNOWLEDGE / "published/factors.yaml", _about(args.rows, len(cases)))


def _about(rows: Path, count: int) -> str:
    """Header of the factors: `sparkfleet knowledge status` reads the age of the fit from it."""
    with rows.open(newline="", encoding="utf-8") as file:
        newest = max((row["date"] for row in csv.DictReader(file) if row.get("date")), default="")
    return f"{count} measurements, the newest of {newest}." if newest else f"{count} measurements."


if __name__ == "__main__":
    main()
