"""Words about speeds that `sparkfleet bench` measured, each beside its prediction. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.units import three_digits

if TYPE_CHECKING:  # slow imports, for groups that run
    from sparkfleet.controlplane.state.tables.bench_table import BenchLoad, BenchResult, LoadSpeeds
    from sparkfleet.planner.types.plan import Rung


class LoadBands(NamedTuple):
    """Bands that a plan predicts of a load; None: it predicts nothing."""

    ttft_ms: Band | None = None
    request_tps: Band | None = None
    group_tps: Band | None = None


def bands_of(prediction: Prediction, load: BenchLoad) -> LoadBands:
    """Bands that a plan has of a load: one request alone, or as many at once as it serves, with prompts of one length."""
    if prediction.prompt != load.prompt:
        return LoadBands()
    if load.concurrency == 1:
        return LoadBands(prediction.ttft_ms, prediction.decode_tps_per_request)
    is_planned = prediction.concurrency == load.concurrency
    return LoadBands(group_tps=prediction.decode_tps_aggregate if is_planned else None)


def bench_words(one: LoadSpeeds, bands: LoadBands | None = None) -> str:
    """`4 at once: TTFT 812 ms, 31 tok/s each, 118 tok/s (predicted 96–140) together`."""
    return f"{load_words(one.load)}: {speed_words(one, bands or LoadBands())}"


def load_words(load: BenchLoad) -> str:
    """`alone`, or `4 at once`."""
    return "alone" if load.concurrency == 1 else f"{load.concurrency} at once"


def speed_words(one: LoadSpeeds, bands: LoadBands) -> str:
    """Speeds of one load, each with its band if it has one."""
    rate = _with(f"{three_digits(one.request_tps)} tok/s", one.request_tps, bands.request_tps)
    words = f"TTFT {_with(f'{one.ttft_ms:.0f} ms', one.ttft_ms, bands.ttft_ms)}, {rate}"
    if one.load.concurrency == 1:
        return f"{words} for one user"
    together = _with(f"{three_digits(one.group_tps)} tok/s", one.group_tps, bands.group_tps)
    return f"{words} each, {together} together"


def bench_lines(rungs: Iterable[Rung], results: Sequence[BenchResult]) -> Iterator[str]:
    """One line for each result with a rung's setup: `2026-11-30, prompts of 2,048 tokens, alone: TTFT 412 ms (…), …`."""
    from sparkfleet.controlplane.state.tables.bench_table import bench_setup_of

    for rung in rungs:
        setup = bench_setup_of(rung.candidate)
        own = [one for one in results if one.setup == setup]
        for one in sorted(own, key=lambda one: (one.load.prompt, one.load.concurrency)):
            day = datetime.fromtimestamp(one.at, UTC).date().isoformat()
            words = bench_words(one, bands_of(rung.prediction, one.load))
            yield f"{day}, prompts of {one.load.prompt:,} tokens, {words}"


def _with(words: str, value: float, band: Band | None) -> str:
    """A measured value with its prediction: `48.2 tok/s (predicted 39–64)`."""
    if band is None:
        return words
    beyond = ", below it" if value < band.low else ", above it" if value > band.high else ""
    return f"{words} (predicted {band_ends(band)}{beyond})"
