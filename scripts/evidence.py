"""Writes knowledge/published/evidence.csv: published measurements counted by family, engine, method, format and nodes.

    python scripts/evidence.py [--check]

`--check` writes nothing and ends with 1 if the file is not what would be written. Run it after scripts/measurements.py and
after scripts/fit.py: it holds rates against the predictions of the committed factors.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparkfleet.accuracy.decisions import published_cases
from sparkfleet.accuracy.evidence_rows import evidence_in
from sparkfleet.knowledge.published import evidence
from sparkfleet.knowledge.published.factors import factors

FILE = Path(evidence.__file__).parents[1] / evidence.FILE


def main() -> int:
    """Write the file, or check it."""
    text = evidence.written(evidence_in(published_cases(), factors()))
    if "--check" in sys.argv:
        return int(not FILE.exists() or FILE.read_text() != text)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())
