"""Writes knowledge/published/evidence.csv: published measurements counted by family, engine, method, format and nodes.

    python scripts/evidence.py [--check] [--doublings]

`--check` writes nothing and ends with 1 if the file is not what would be written. Run it after scripts/measurements.py and
after scripts/fit.py: it holds rates against the predictions of the committed factors. `--doublings` prints what twice the
nodes gained over the prediction, for each source that ran a combination on both.
"""

from __future__ import annotations

import sys
from math import exp, log
from pathlib import Path
from statistics import mean

from sparkfleet.accuracy.decisions import published_cases
from sparkfleet.accuracy.evidence_rows import doublings_in, evidence_in
from sparkfleet.knowledge.published import evidence
from sparkfleet.knowledge.published.factors import factors

FILE = Path(evidence.__file__).parents[1] / evidence.FILE


def doublings() -> None:
    """Print each gain, and their geometric mean with the least and the greatest."""
    found = doublings_in(published_cases(), factors())
    for run, gain in found:
        what = f"{run.model} {run.engine} {run.method} {run.format}"
        print(f"{gain:5.2f}  {run.nodes} → {2 * run.nodes} nodes  {what}  {', '.join(run.sources)}")
    gains = [one.gain for one in found]
    print(f"{exp(mean(map(log, gains))):5.2f}  mean of {len(gains)} ({min(gains):.2f} to {max(gains):.2f})")


def main() -> int:
    """Write the file, or check it."""
    if "--doublings" in sys.argv:
        doublings()
        return 0
    text = evidence.written(evidence_in(published_cases(), factors()))
    if "--check" in sys.argv:
        return int(not FILE.exists() or FILE.read_text() != text)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check", "--doublings")
    sys.exit(main())
