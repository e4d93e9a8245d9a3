"""Writes knowledge/published/evidence.csv: published measurements counted by family, engine, method, format and nodes; and
figures.csv beside it: their rates by checkpoint, text and load.

    python scripts/evidence.py [--check] [--doublings] [--drawn]

`--check` writes nothing and ends with 1 if a file is not what would be written. Run it after scripts/measurements.py and
after scripts/fit.py: it holds rates against the predictions of the committed factors. `--doublings` prints what twice the
nodes gained over the prediction, for each source that ran a combination on both; `--drawn` whether rates of other sources
bring a prediction nearer to those of one.
"""

from __future__ import annotations

import sys
from math import exp, log
from pathlib import Path
from statistics import mean, median

from sparkfleet.accuracy.decisions import published_cases
from sparkfleet.accuracy.evidence_rows import doublings_in, evidence_in
from sparkfleet.accuracy.figure_rows import drawn_errors, figures_in
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.published import evidence, figures
from sparkfleet.knowledge.published.factors import factors

DIRECTORY = Path(evidence.__file__).parents[1]


def doublings() -> None:
    """Print each gain, and their geometric mean with the least and the greatest."""
    found = doublings_in(published_cases(), factors())
    for run, gain in found:
        what = f"{run.model} {run.engine} {run.method} {run.format}"
        print(f"{gain:5.2f}  {run.nodes} → {2 * run.nodes} nodes  {what}  {', '.join(run.sources)}")
    gains = [one.gain for one in found]
    print(f"{exp(mean(map(log, gains))):5.2f}  mean of {len(gains)} ({min(gains):.2f} to {max(gains):.2f})")


def drawn() -> None:
    """Print the errors of predictions alone, and of those that are drawn toward what other sources published."""
    found = drawn_errors(figures.read_figures(packaged(figures.FILE)))
    for drafted in (False, True):
        of_kind = [one for one in found if one.drafted is drafted]
        texts = []
        for name in ("alone", "drawn"):
            errors = [getattr(one, name) for one in of_kind]
            texts.append(
                f"{name} {100 * median(errors):.1f} % in the median, {100 * mean(errors):.1f} % in the mean"
            )
        print(f"{'with' if drafted else 'without'} drafts, {len(of_kind)} sources: {'; '.join(texts)}")


def main() -> int:
    """Write the files, or check them."""
    if "--doublings" in sys.argv:
        doublings()
        return 0
    if "--drawn" in sys.argv:
        drawn()
        return 0
    cases, known = published_cases(), factors()
    texts = {
        DIRECTORY / evidence.FILE: evidence.written(evidence_in(cases, known)),
        DIRECTORY / figures.FILE: figures.written(figures_in(cases, known)),
    }
    if "--check" in sys.argv:
        return int(any(not file.exists() or file.read_text() != text for file, text in texts.items()))
    for file, text in texts.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check", "--doublings", "--drawn")
    sys.exit(main())
