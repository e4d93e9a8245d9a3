"""Bring published measurements into `sparkfleet/knowledge/measurements/benchmarks.csv`.

    python scripts/measurements.py ROWS.csv         normalise ROWS.csv (same columns) and write the packaged file

Figures and what was run are facts and are kept with their source. Of the notes only the words remain that say how the
figure was measured, which is all that `bench.rows` reads; nothing else of anybody's prose is kept.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from sparkfleet.accuracy.notes import telling
from sparkfleet.accuracy.rows import read_rows

TARGET = Path(__file__).parents[1] / "sparkfleet" / "knowledge" / "measurements" / "benchmarks.csv"
DROPPED = ("peak_mem_gb", "startup_s", "max_model_len")


def normalised(row: dict[str, str]) -> dict[str, str]:
    """One row as it is packaged."""
    kept = {key: value for key, value in row.items() if key not in DROPPED}
    source = re.sub(r"\s*\((?:mirror|stored)[^)]*\)", "", kept["source_url_or_repo_path"])
    kept["source_url_or_repo_path"] = re.sub(r"^seed:(\d+)_\w+\.txt", r"field report \1", source)
    return kept | {"notes": telling(kept["notes"])}


def main() -> None:
    """Read, normalise, write."""
    rows = [normalised(row) for row in read_rows(Path(sys.argv[1]))]
    with TARGET.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows, {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
