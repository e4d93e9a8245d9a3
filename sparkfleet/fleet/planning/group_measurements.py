"""Measurements of running groups: next to their predictions, and as evidence for further plans. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

from sparkfleet.group.group_name import short_name
from sparkfleet.perf.latency.factor_keys import release_of
from sparkfleet.perf.local_measurements import LocalMeasurement, Point
from sparkfleet.perf.prediction import Band
from sparkfleet.perf.workload import CHECK, Workload, predicted_content
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.planner.types.plan import Rung

if TYPE_CHECKING:  # slow imports, for groups that run
    from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
    from sparkfleet.controlplane.state.tables.bench_table import BenchResult, BenchSetup
    from sparkfleet.group.report import GroupReport


def measurements_of(status: FleetStatus | None) -> tuple[LocalMeasurement, ...]:
    """One measurement per running setup, the median if several groups have it, and those that `sparkfleet bench` made.

    Groups on CPUs are left out: nothing is predicted for them, and a GPU differs too much.
    """
    if status is None:
        return ()
    benched = (_of_bench(one) for one in status.bench if one.setup.device == "cuda")
    return (*_of_starts(status), *benched)


def _of_starts(status: FleetStatus) -> Iterator[LocalMeasurement]:
    from sparkfleet.controlplane.state.tables.bench_table import bench_setup_of

    found: dict[BenchSetup, list[GroupReport]] = {}
    for deployment in status.deployments:
        for report in deployment.groups:
            rung = rung_of(deployment, report)
            if rung is not None and report.measured and rung.candidate.device == "cuda":
                found.setdefault(bench_setup_of(rung.candidate), []).append(report)
    return (_of_setup(setup, _point(reports)) for setup, reports in found.items())


def _of_bench(result: BenchResult) -> LocalMeasurement:
    load = result.load
    workload = Workload(
        prompt=load.prompt,
        generate=load.answer,
        concurrency=load.concurrency,
        content=predicted_content(load.content),
        window="burst",
    )
    point = Point(
        workload=workload,
        when=_date(result.at),
        ttft_ms=result.ttft_ms,
        decode_tps_per_request=result.request_tps,
        decode_tps_aggregate=result.group_tps,
    )
    return _of_setup(result.setup, point)


def rung_of(deployment: DeploymentStatus, report: GroupReport) -> Rung | None:
    """Rung that a ready group was planned as; None if it is not ready, or its plan is another generation's."""
    from sparkfleet.group.report import GroupPhase

    return deployment.rung_of(report) if report.phase is GroupPhase.READY else None


def _of_setup(setup: BenchSetup, point: Point) -> LocalMeasurement:
    return LocalMeasurement(
        model=setup.model,
        engine=setup.engine,
        tp=setup.tp,
        pp=setup.pp,
        dcp=setup.dcp,
        method=setup.speculation.method,
        k=setup.speculation.tokens,
        release=release_of(setup.image or "", setup.engine_version),
        point=point,
    )


def _point(reports: list[GroupReport]) -> Point:
    return Point(
        workload=CHECK,
        when=_date(max(report.since for report in reports)),
        ttft_ms=_middle(reports, "ttft_ms"),
        decode_tps_per_request=_middle(reports, "decode_tps"),
        accepted=_middle(reports, "tokens_per_step"),
    )


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _middle(reports: list[GroupReport], name: str) -> float | None:
    values = [report.measured[name] for report in reports if name in report.measured]
    return median(values) if values else None


def measured_lines(deployment: DeploymentStatus) -> Iterator[str]:
    """One line per group that is ready: `g1/0: TTFT 24 ms (predicted 24–36), …`."""
    for report in deployment.groups:
        if rung_of(deployment, report) is not None and report.measured:
            yield f"{short_name(report.group)}: {measured_words(deployment, report)}"


NOT_MEASURED = "speed not measured yet: it is once no other engine of its nodes starts or is measured"
NEVER_MEASURED = "no speed, as the API of a custom workload is not known"


def measured_words(deployment: DeploymentStatus, report: GroupReport) -> str:
    """Measurements of a group with their predictions, both for one short request alone."""
    from sparkfleet.group.measured_rate import unknown_rate_words

    if not {"ttft_ms", "decode_tps"} & report.measured.keys():
        return NEVER_MEASURED if report.engine == "custom" else NOT_MEASURED
    rung = rung_of(deployment, report)
    prediction = rung.prediction if rung else None
    ttft = _number(report, "ttft_ms", "{:.0f} ms", prediction.check_ttft_ms if prediction else None)
    tps = _number(
        report, "decode_tps", "{:.1f} tok/s for one user", prediction.check_decode_tps if prediction else None
    )
    tps = unknown_rate_words(report.measured) or tps
    text = report.measured.get("tokens_per_step")
    return f"TTFT {ttft}, {tps}" + (f", {text:.2f} tokens per step of that text" if text else "")


def canary_words(report: GroupReport) -> str:
    """Canary readings of a group, and those it could not take; "" before the first."""
    forms = (
        ("text_perplexity", "perplexity of a known text {:.3g}"),
        ("own_perplexity", "of its own answer {:.3g}"),
        ("own_agreement", "{:.0%} of the answer's tokens chosen again"),
        ("accepted_share", "{:.0%} of draft tokens accepted"),
    )
    readings = [form.format(report.measured[name]) for name, form in forms if name in report.measured]
    readings += [f"not checked: {what}" for what in report.unchecked]
    return ", ".join(readings)


def is_predicted(deployment: DeploymentStatus, report: GroupReport) -> bool:
    """True if a prediction exists for the metrics that a group measures."""
    rung = rung_of(deployment, report)
    return rung is not None and rung.prediction.check_decode_tps is not None


def _number(report: GroupReport, name: str, form: str, band: Band | None) -> str:
    value = form.format(report.measured[name]) if name in report.measured else "–"
    if band is None:
        return value
    return f"{value} (predicted {band_ends(band)})"
