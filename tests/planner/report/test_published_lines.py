"""Published rates beside predicted ones."""

from __future__ import annotations

import pytest

from sparkfleet.knowledge.published.figures import ComparedFigure
from sparkfleet.perf.prediction import Band, Provenance
from sparkfleet.planner.report.explain.plan import explain_plan
from sparkfleet.planner.report.explain.published_lines import published_lines, published_rate
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.planner.types.rung_facts import PublishedRuns

MODEL = "nvidia/Qwen3.6-27B-NVFP4"
BAND = Band(low=15.0, mid=20.0, high=30.0)


@pytest.fixture
def planned(sparks, plan, ask):
    """planned(figure, objective): a plan with that figure beside the band of 15 to 30."""

    def made(figure: ComparedFigure | None, objective: str = "interactive", **band: object) -> DeploymentPlan:
        found = plan(sparks(1), ask(MODEL, objective=objective)).deployments[0]
        (group,) = found.groups
        many = objective == "throughput"
        rate = BAND.model_copy(update=band)
        prediction = group.choice.prediction.model_copy(
            update={"decode_tps_aggregate" if many else "decode_tps_per_request": rate}
        )
        published = PublishedRuns(rows=1, same=True, **{"together" if many else "figure": figure})
        choice = group.choice.model_copy(update={"prediction": prediction, "published": published})
        group = group.model_copy(update={"ladder": (choice, *group.ladder[1:])})
        return found.model_copy(update={"groups": (group,)})

    return made


def figure(tps: float, expected: float, **given: object) -> ComparedFigure:
    return ComparedFigure.model_validate({"tps": tps, "expected": expected, "sources": ("a/b",)} | given)


def words(found: DeploymentPlan) -> str:
    choice: Rung = found.groups[0].choice
    return " ".join(" ".join(published_lines(choice, found.name, found.objective)).split())


def test_a_rate_below_the_band_is_a_fact_its_meaning_and_a_command(planned) -> None:
    """22 tok/s (17–28; published: 12.4) had no word on it, and the verdict had 22 alone."""
    found = planned(figure(10.0, 20.0))
    assert words(found) == (
        "published 10 tok/s for one user (a/b) is below the band: 0.5× the prediction for that run"
        " expect 10 to 20 tok/s; `sparkfleet bench m` measures it once it runs"
    )
    assert published_rate(found) == " (published: 10)"
    text = "\n".join(explain_plan(found))
    assert "20 tok/s for one user (15–30; published: 10)" in text
    assert "  published   10 tok/s for one user (a/b) is below the band" in text


def test_a_rate_above_the_band(planned) -> None:
    found = planned(figure(60.0, 30.0, sources=("a/b", "c/d"), of="x/y"))
    assert words(found).startswith(
        "published 60 tok/s for one user of x/y (2 sources) is above the band: 2× the prediction for that run"
        " expect 20 to 40 tok/s;"
    )
    assert published_rate(found) == "", "of another checkpoint"


@pytest.mark.parametrize("tps", [15.1, 20.0, 29.9])
def test_a_rate_in_the_band_has_no_line(planned, tps) -> None:
    assert words(planned(figure(tps, 20.0))) == ""
    assert words(planned(None)) == ""


def test_a_rate_whose_own_prompts_explain_it(planned) -> None:
    assert words(planned(figure(10.0, 11.0))) == (
        "published 10 tok/s is outside 15–30 because of its own prompts and text: 11 are predicted for these"
    )


def test_what_was_measured_here_has_no_published_rate_beside_it(planned) -> None:
    found = planned(figure(10.0, 20.0), provenance=Provenance.MEASURED)
    assert words(found) == published_rate(found) == ""
    assert "published" not in "\n".join(explain_plan(found)).partition("why")[0]


def test_for_many_requests_the_rate_of_as_many_counts(planned) -> None:
    found = planned(figure(10.0, 20.0, requests=16), "throughput")
    assert words(found).startswith("published 10 tok/s for 16 requests together (a/b) is below the band")
    assert published_rate(found) == " (published: 10 by 16)"
    assert "; published: 10 by 16)" in " ".join("\n".join(explain_plan(found)).split())
