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

from sparkfleet.bench.rows import read_rows

TARGET = Path(__file__).parents[1] / "sparkfleet" / "knowledge" / "measurements" / "benchmarks.csv"
DROPPED = ("peak_mem_gb", "startup_s", "mem_util_flag", "max_model_len")

WORDS = re.compile(
    r"not_measured|marlin|enforce[-_]eager|non-eager|\beager|llama-batched-bench|s_tg|decode net of prefill|served"
    r"|incl\.? (?:prefill|ttft)|\bwall|bench_serve|closed-loop|open-loop|bench serve|prefill overlap|llama-benchy|\bmesh"
    r"|prompt ~\d+|rate=[\d.]+ rps|rate sweep at [\d.]+ rps|completed=\d+"
    r"|(?:max[-_ ]num[-_ ]seqs|max-running-requests|--parallel|server parallel)[ =]*\d+|\d+ (?:serving )?slots|\bseqs\d+\b"
    r"|(?:max-num-batched-tokens|prefill-chunk|mnbt|-ub)[ =]*\d+k?|topk=4|\b2x solo|replicas|pipeline parallel"
    r"|over tcp|tcp socket|1 gbe|per-request prompt/ttft|prompt/ttft"
    r"|mixed code|prose reasoning|ifeval|reasoning"
    r"|structur|json|\bcount|numbered|schema|high-acceptance|high acceptance|objective task|workload repeat|agentic"
    r"|agent (?:turn|session|traffic)|narrative|workload tools|r0b0bench concurrency lane|spark-arena"
    r"|\b(?:fr|de)\b|german|french|\bcod(?:e|ing)|codegen|\bbst\b|hash-map|\blru|is_prime|humaneval|script|math"
    r"|gsm|mmlu|reason|eval\b|prose|essay|story|explanation|summar|translat|synthetic|random"
)


def words_of(notes: str) -> str:
    """The words of some notes that say how a figure was measured, each once, in order."""
    return "; ".join(dict.fromkeys(WORDS.findall(notes.lower())))


def normalised(row: dict[str, str]) -> dict[str, str]:
    """One row as it is packaged."""
    kept = {key: value for key, value in row.items() if key not in DROPPED}
    source = re.sub(r"\s*\((?:mirror|stored)[^)]*\)", "", kept["source_url_or_repo_path"])
    kept["source_url_or_repo_path"] = re.sub(r"^seed:(\d+)_\w+\.txt", r"field report \1", source)
    return kept | {"notes": words_of(kept["notes"])}


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
