"""Published measurements as cases: a row of a CSV becomes a setup, a workload and figures, or a reason why not.

Configuration and workload come only from columns about the configuration, never from measured ones (rates, times, memory,
acceptance). What a row leaves open is assumed, and reported as assumed; words that are not known decline the row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkfleet.accuracy import notes as note_reader
from sparkfleet.accuracy.cells import CsvRow, count, measured
from sparkfleet.accuracy.files import NOTHING, read_table
from sparkfleet.accuracy.harnesses import Harness, harness_of
from sparkfleet.accuracy.models import Configs, Declined
from sparkfleet.accuracy.row_to_config import model_of, setup_of
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.workload import Workload
from sparkfleet.values import Value

EXPECTED = "a CSV file of measurements, with a header"
COLUMNS = "Give one with the columns of sparkfleet/knowledge/measurements/benchmarks.csv."

METRICS = ("decode_tps_per_request", "decode_tps_aggregate", "prefill_tps", "ttft_ms")


class PublishedCase(Value):
    """One row: the configuration, and the measured figures."""

    id: str
    source: str
    """Publisher: a repository or a site."""
    model: str
    quant: str
    image: str = ""
    """Engine version or image, as published."""
    nodes: int
    setup: SpeedConfig
    workload: Workload
    replicas: int = 1
    """Independent copies that share the concurrency."""
    per_request_prefill: bool = False
    """`prefill_tps` is prompt / TTFT of one request, not the engine's own rate for all of them together."""
    yielded: float | None = None
    """Tokens per speculative step as measured. Only fitting reads it; predictions never do."""
    assumed: tuple[str, ...] = ()
    """Assumptions about what the row leaves open."""
    measured: tuple[tuple[str, float], ...] = ()

    @property
    def speculative(self) -> bool:
        """True if a speculative method was on."""
        return self.setup.method != "none"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file with a header.

    Raises:
        SpecError: no such file, not UTF-8, or no `model` column.
    """
    table = read_table(path, EXPECTED, COLUMNS)
    rows = [{re.sub(r"[\s-]+", "_", k.lower()): v.strip() for k, v in row.items()} for row in table]
    if not rows or "model" not in rows[0]:
        raise SpecError(
            f"{path}: has no rows with a `model` column. Expected {EXPECTED}.", means=NOTHING, do=COLUMNS
        )
    return rows


def source_of(row: CsvRow) -> str:
    """Publisher of a measurement: `owner/repo` of a repository, the host of a page, or the text itself."""
    text = row.get("source_url_or_repo_path", "")
    hub = r"github:|https?://github\.com/|https?://huggingface\.co/(?:datasets/)?"
    found = re.match(rf"(?:{hub})([^/:\s]+/[^/:\s]+)", text)
    if found:
        return found.group(1)
    found = re.match(r"https?://([^/\s]+)", text) or re.match(r"([^:(]+)", text)
    return found.group(1).strip() if found else text


def cases_of(rows: Iterable[CsvRow]) -> Iterator[PublishedCase]:
    """Cases of the rows that are complete enough, with the packaged configs; `sparkfleet accuracy` counts the others."""
    for row in rows:
        try:
            yield case_of(row, architectures())
        except Declined:
            continue


def case_of(row: CsvRow, configs: Configs) -> PublishedCase:
    """The case of a row.

    Raises:
        Declined: the row is not enough; the message is the reason.
    """
    notes = row.get("notes", "").lower()
    if note_reader.has_trait("estimate", notes):
        raise Declined("estimate, not a measurement")
    if note_reader.has_trait("impaired", notes):
        raise Declined("measured on an impaired machine or network")
    assumed: list[str] = []
    model = model_of(row, configs, assumed)
    harness = harness_of(source_of(row), count(row, "nodes", least=1) or 1, notes)
    workload = _workload(row, notes, harness, assumed)
    ran = setup_of(
        row, model, workload, assumed, eager=harness.eager or note_reader.has_trait("eager", notes)
    )
    return PublishedCase(
        id=row.get("id", ""),
        source=source_of(row),
        model=row["model"],
        quant=row.get("quant", ""),
        image=row.get("engine_version_or_image", ""),
        nodes=ran.nodes,
        setup=ran.setup,
        workload=workload,
        replicas=ran.replicas,
        per_request_prefill=_by_ttft(model.engine, notes, workload),
        yielded=_yielded(row, ran.setup.k),
        assumed=tuple(assumed),
        measured=_measured(row, notes, cached=workload.concurrency >= (harness.cached_from or math.inf)),
    )


_OF_PREFILL = ("prefill_tps", "ttft_ms")


def _measured(row: CsvRow, notes: str, *, cached: bool) -> tuple[tuple[str, float], ...]:
    """The figures of a row, without prefill if the prompt was cached (by harness or notes) or the engine warmed up in it."""
    unusable = cached or any(note_reader.has_trait(trait, notes) for trait in ("cached", "warming"))
    figures = (
        (metric, measured(row, metric)) for metric in METRICS if not (unusable and metric in _OF_PREFILL)
    )
    return tuple((metric, value) for metric, value in figures if value is not None)


def _yielded(row: CsvRow, k: int) -> float | None:
    """Tokens per step from an accepted length ("3.2-3.6 of 4") or an acceptance ("66.3%", "0.394")."""
    text = row.get("accept_len_or_rate", "").lower()
    if not count(row, "spec_tokens") or "up to" in text:
        return None
    shares, lengths = [], []
    for low, high, percent in re.findall(r"([0-9]+(?:\.[0-9]+)?)(?:-([0-9]+(?:\.[0-9]+)?))?(%?)", text):
        value = (float(low) + float(high or low)) / 2
        if percent or value < 1:
            shares.append(value / 100 if percent else value)
        elif value <= k + 1:
            lengths.append(value + ("accepted" in text or "/draft" in text))
    if lengths:
        return lengths[0]
    return 1 + min(1.0, shares[0]) * k if shares else None


def _by_ttft(engine: str, notes: str, workload: Workload) -> bool:
    """True if a prefill rate was computed from the TTFT: stated, or one request without a harness that measures it."""
    better = engine in ("llama.cpp", "ollama", "ds4") or note_reader.has_trait("benchy", notes)
    return note_reader.has_trait("by ttft", notes) or (workload.concurrency == 1 and not better)


def _workload(row: CsvRow, notes: str, harness: Harness, assumed: list[str]) -> Workload:
    prompt, generate = count(row, "prompt_tokens"), count(row, "gen_tokens")
    depth, concurrency = count(row, "depth") or 0, count(row, "concurrency", least=1)
    if concurrency is None:
        assumed.append("concurrency not given: 1")
    if prompt is None:
        prompt = note_reader.prompt(notes)
        if not prompt:
            assumed.append("prompt length not given")
    if not generate:
        assumed.append("answer length not given: 256")
    once = bool(depth) and note_reader.has_trait("benchy", notes)
    arrivals = note_reader.arrivals(notes)
    requests = note_reader.requests(notes) or harness.requests
    window = note_reader.window(notes) or harness.window or "steady"
    if window == "closed" and arrivals is None and requests is not None and requests <= (concurrency or 1):
        window = "served"  # a loop of one round: all requests are sent at once, and none follows
    return Workload(
        prompt=prompt,
        depth=depth,
        depth_cached=not once if harness.depth_cached is None else harness.depth_cached,
        generate=generate or 256,
        concurrency=concurrency or 1,
        arrivals_per_s=arrivals,
        requests=requests,
        content=note_reader.content(notes) or harness.content or "mixed",
        window=window,
        answers_apart=note_reader.has_trait("apart", notes),
    )
