"""Published rates beside the predicted ones, and a warning if they lie outside the predicted band."""

from __future__ import annotations

from sparkfleet.knowledge.published.figures import ComparedFigure
from sparkfleet.perf.prediction import Band, Provenance
from sparkfleet.planner.report.explain.layout import band_ends, lines_of
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.specs.deployment import Objective
from sparkfleet.units import plural, three_digits


def beside(band: Band, figure: ComparedFigure | None) -> str:
    """`; published: 46.1 of OWNER/NAME`, behind the ends of a band; "" without a figure, or if it was measured here."""
    return f"; {figure.words}" if figure is not None and band.provenance is not Provenance.MEASURED else ""


def figure_of(rung: Rung, objective: Objective) -> tuple[Band, ComparedFigure] | None:
    """The predicted rate under an objective and the published one; None if one of them is missing, or was measured here."""
    prediction, published = rung.prediction, rung.published
    many = objective == "throughput"
    band = prediction.decode_tps_aggregate if many else prediction.decode_tps_per_request
    figure = published.together if many else published.figure
    if band is None or figure is None or band.provenance is Provenance.MEASURED:
        return None
    return band, figure


def published_lines(rung: Rung, name: str, objective: Objective) -> list[str]:
    """The warning on a published rate that the prediction does not explain; no line if it does.

    It is compared with the prediction for its own prompts, text and load, which may differ from those of the plan.

    Args:
        rung: the choice.
        name: the deployment.
        objective: its objective.
    """
    found = figure_of(rung, objective)
    if found is None:
        return []
    band, figure = found
    ratio = figure.tps / figure.expected
    if band.low / band.mid <= ratio <= band.high / band.mid:
        return _explained(band, figure)
    side = "below" if ratio < 1 else "above"
    load = f"{figure.requests} requests together" if figure.requests > 1 else "one user"
    by = figure.sources[0] if len(figure.sources) == 1 else plural(len(figure.sources), "source")
    ends = [three_digits(rate) for rate in sorted((band.mid, band.mid * ratio))]
    return lines_of(
        "published",
        f"{three_digits(figure.tps)} tok/s for {load}{figure.measured_with} ({by}) is {side} the band:"
        f" {ratio:.2g}× the prediction for that run",
        f"expect {ends[0]} to {ends[1]} tok/s; `sparkfleet bench {name}` measures it once it runs",
    )


def _explained(band: Band, figure: ComparedFigure) -> list[str]:
    """The reason for a rate outside the band whose own prediction is as far from the plan's."""
    if band.low <= figure.tps <= band.high:
        return []
    return lines_of(
        "published",
        f"{three_digits(figure.tps)} tok/s is outside {band_ends(band)} because of its own prompts"
        f" and text: {three_digits(figure.expected)} are predicted for these",
    )


def published_rate(plan: DeploymentPlan) -> str:
    """` (published: 12.4)` of the same checkpoint and text, behind the rate of a plan; "" if there is none."""
    found = figure_of(plan.groups[0].choice, plan.objective) if len(plan.groups) == 1 else None
    return f" ({found[1].words})" if found is not None and found[1].is_alike else ""
