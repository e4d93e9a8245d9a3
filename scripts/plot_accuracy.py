"""Draw predicted against published: `docs/pictures/accuracy-*.svg`.

    python scripts/plot_accuracy.py [ROWS.csv]

Each dot is one published figure; the lines are equal, half and double. In sample if ROWS.csv is what was fitted on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

from sparkfleet.accuracy.accuracy import compare_rows
from sparkfleet.accuracy.accuracy_report import AccuracyReport, ScoredCase
from sparkfleet.accuracy.rows import METRICS

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "sparkfleet" / "knowledge" / "measurements" / "benchmarks.csv"
SIZE, EDGE = 420, 46
AT_MOST = 900
TITLES = {
    "decode_tps_per_request": "decode, one request, tok/s",
    "decode_tps_aggregate": "decode, all requests, tok/s",
    "prefill_tps": "prefill, tok/s",
    "ttft_ms": "time to the first token, ms",
}


def picture(metric: str, scored: list[ScoredCase]) -> str:
    """One log-log scatter as SVG."""
    shown = scored[:: max(1, len(scored) // AT_MOST)]
    values = [x for s in shown for x in (s.measured, s.predicted.mid)]
    low, high = (
        10 ** round_(math.log10(edge(values))) for edge, round_ in ((min, math.floor), (max, math.ceil))
    )

    def at(value: float) -> float:
        return EDGE + (SIZE - 2 * EDGE) * math.log(value / low) / math.log(high / low)

    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" font-family="sans-serif" font-size="11">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<text x="{SIZE / 2}" y="18" text-anchor="middle" font-size="13">{TITLES[metric]}</text>',
        f'<text x="{SIZE / 2}" y="{SIZE - 8}" text-anchor="middle">published</text>',
        f'<text x="12" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 12 {SIZE / 2})">predicted</text>',
    ]
    for factor, colour in ((1.0, "#444"), (0.5, "#bbb"), (2.0, "#bbb")):
        body.append(_line(low, high, factor, at, colour))
    decade = low
    while decade <= high * 1.001:
        x = at(decade)
        body.append(f'<text x="{x:.0f}" y="{SIZE - EDGE + 16}" text-anchor="middle">{decade:g}</text>')
        body.append(f'<text x="{EDGE - 6}" y="{SIZE - x + 4:.0f}" text-anchor="end">{decade:g}</text>')
        decade *= 10
    for one in shown:
        colour = "#d95f02" if one.case.speculative else "#1b6ca8"
        x, y = at(one.measured), SIZE - at(one.predicted.mid)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}" fill-opacity="0.45"/>')
    legend = (("no speculation", "#1b6ca8", 34), ("speculative", "#d95f02", 48))
    body += [f'<text x="{EDGE + 8}" y="{y + 8}" fill="{colour}">{name}</text>' for name, colour, y in legend]
    return "\n".join([*body, "</svg>"]) + "\n"


def _line(low: float, high: float, factor: float, at: Callable[[float], float], colour: str) -> str:
    ends = [(x, x * factor) for x in (max(low, low / factor), min(high, high / factor))]
    (x1, y1), (x2, y2) = ((at(a), SIZE - at(b)) for a, b in ends)
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def main() -> None:
    """Predict all rows and write one picture per metric."""
    report: AccuracyReport = compare_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
    target = ROOT / "docs" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    for metric in METRICS:
        scored = [s for s in report.scored if s.metric == metric]
        (target / f"accuracy-{metric.replace('_', '-')}.svg").write_text(
            picture(metric, scored), encoding="utf-8"
        )
        print(f"{metric}: {len(scored)} figures")


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, words=True)
    main()
