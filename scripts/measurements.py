"""Bring published measurements into `sparkfleet/knowledge/measurements/benchmarks.csv`.

    python scripts/measurements.py ROWS.csv...     normalise rows (same columns) and add them to the packaged file

A row of a later file whose figures an earlier one has of the same model is a copy and is left out. Figures and what was run
are facts and are kept with their source. Of the notes only the words about the method of measurement remain, which is
all that `accuracy.rows` reads; nothing else of anybody's prose is kept. A figure in a unit that is not read ends it.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

from sparkfleet.accuracy.cells import measured, unreadable
from sparkfleet.accuracy.notes import relevant_words
from sparkfleet.accuracy.rows import METRICS, read_rows
from sparkfleet.knowledge.models.model_names import plain

TARGET = Path(__file__).parents[1] / "sparkfleet" / "knowledge" / "measurements" / "benchmarks.csv"
DROPPED = ("peak_mem_gb", "startup_s", "max_model_len")


def normalised(row: dict[str, str]) -> dict[str, str]:
    """One row as it is packaged."""
    kept = {key: value for key, value in row.items() if key not in DROPPED}
    source = re.sub(r"\s*\((?:mirror|stored)[^)]*\)", "", kept["source_url_or_repo_path"])
    kept["source_url_or_repo_path"] = re.sub(r"^seed:(\d+)_\w+\.txt", r"field report \1", source)
    return kept | {"notes": relevant_words(kept["notes"])}


WHERE = ("nodes", "concurrency", "prompt_tokens", "depth")


def figures(row: dict[str, str]) -> tuple[object, ...]:
    """Cells that two rows share if one of them is a copy: the model, the load, and every figure."""
    load = tuple(row[column] or "0" for column in WHERE)
    found = {metric: measured(row, metric) for metric in METRICS}
    each = found.pop("decode_tps_per_request")
    if load[1] in ("0", "1"):  # one request alone: its rate is that of all, and some write it once
        found["decode_tps_aggregate"], each = each or found["decode_tps_aggregate"], None
    return plain(row["model"]), *load, each, *found.values()


def without_copies(files: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    """The rows of some files, in order, without those that an earlier file has."""
    kept: list[dict[str, str]] = []
    known: set[tuple[object, ...]] = set()
    for rows in files:
        kept += [row for row in rows if figures(row) not in known]
        known.update(map(figures, rows))
    return kept


def main() -> None:
    """Read, normalise, write."""
    files = [[normalised(row) for row in read_rows(path)] for path in (TARGET, *map(Path, sys.argv[1:]))]
    rows = without_copies(files)
    if wrong := [
        f"{row['id']}: {cell}" for row in rows for metric in METRICS if (cell := unreadable(row, metric))
    ]:
        sys.exit("\n".join(["Nothing was added.", *wrong]))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    # As a whole: a row with another column has raised before.
    TARGET.write_text(text.getvalue(), encoding="utf-8")
    print(f"{len(rows) - len(files[0])} new rows, {sum(map(len, files)) - len(rows)} copies left out")
    print(f"{len(rows)} rows, {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, words=True)
    main()
