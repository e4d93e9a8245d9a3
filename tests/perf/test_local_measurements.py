"""The user's own measurements: exact where they were made, fading with distance, never lost."""

from __future__ import annotations

import pytest

from sparkfleet.accuracy.models import Stored, find_shape
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.latency_model import LatencyModel, model_of
from sparkfleet.perf.latency.rates import rates
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.local_measurements import LocalMeasurement, Point, anchored, distance
from sparkfleet.perf.prediction import Provenance
from sparkfleet.perf.workload import CHECK, Workload, usual
from sparkfleet.planner.packing.fleet_planner import plan_fleet

HERE = Workload(prompt=2048, generate=128)


@pytest.fixture
def model() -> LatencyModel:
    shape = find_shape("Qwen/Qwen3.6-27B-FP8", architectures(), Stored("fp8"))
    return model_of(SpeedConfig(shape=shape, engine="sglang", format="fp8"), factors())


def test_without_measurements_it_is_the_prediction(model: LatencyModel) -> None:
    assert anchored(model, HERE, ()) == rates(model, HERE)


def test_a_measurement_is_repeated_where_it_was_made(model: LatencyModel) -> None:
    point = Point(workload=HERE, when="2026-11-20", decode_tps_per_request=5.0)
    found = anchored(model, HERE, (point,))
    assert found.decode_tps_per_request.mid == pytest.approx(5.0)
    assert found.decode_tps_per_request.provenance is Provenance.MEASURED
    assert "2026-11-20" in found.decode_tps_per_request.basis
    assert found.ttft_ms == rates(model, HERE).ttft_ms


def test_it_corrects_its_neighbours_less_the_further_they_are(model: LatencyModel) -> None:
    plain = rates(model, HERE).decode_tps_per_request.mid
    point = Point(workload=HERE, decode_tps_per_request=plain / 2)

    def ratio(concurrency: int) -> float:
        work = HERE.model_copy(update={"concurrency": concurrency})
        found = anchored(model, work, (point,)).decode_tps_per_request
        assert concurrency == 1 or found.provenance is Provenance.CALIBRATED
        return found.mid / rates(model, work).decode_tps_per_request.mid

    assert ratio(1) == pytest.approx(0.5)
    assert ratio(1) < ratio(2) < ratio(8) < ratio(64) < 1.0


def test_the_nearest_point_counts(model: LatencyModel) -> None:
    far = Point(workload=HERE.model_copy(update={"concurrency": 32}), decode_tps_per_request=0.1)
    near = Point(workload=HERE, decode_tps_per_request=8.0)
    assert anchored(model, HERE, (far, near)).decode_tps_per_request.mid == pytest.approx(8.0)


@pytest.mark.parametrize(("release", "counts"), [("0.26", True), ("", True), ("0.24", False)])
def test_a_measurement_counts_for_its_release(model: LatencyModel, release: str, counts: bool) -> None:
    setup = model.setup.model_copy(update={"release": "0.26"})
    point = Point(workload=HERE, decode_tps_per_request=5.0)
    own = LocalMeasurement(model="m", engine=setup.engine, release=release, point=point)
    assert own.of(setup) is counts


def test_how_soon_a_word_is_answered_says_nothing_of_long_prompts(model: LatencyModel) -> None:
    plain, word = rates(model, HERE), Point(workload=CHECK, ttft_ms=900.0, decode_tps_per_request=4.0)
    found = anchored(model, HERE, (word,))
    assert found.ttft_ms == plain.ttft_ms
    assert found.decode_tps_per_request.mid < plain.decode_tps_per_request.mid
    near = word.model_copy(update={"workload": HERE.model_copy(update={"prompt": 1024})})
    assert anchored(model, HERE, (near,)).ttft_ms != plain.ttft_ms


@pytest.fixture
def drafting() -> LatencyModel:
    shape = find_shape("Qwen/Qwen3.6-27B-FP8", architectures(), Stored("fp8"))
    return model_of(SpeedConfig(shape=shape, engine="vllm", format="fp8", method="mtp", k=3), factors())


def test_of_a_text_that_is_guessed_well_the_time_of_a_step_is_what_holds_for_others(
    drafting: LatencyModel,
) -> None:
    """The check's own text had 3.6 tokens per step where 2.8 are published: its speed is no proof of a faster box."""
    usual, plain = drafting.yielded(CHECK), rates(drafting, HERE).decode_tps_per_request.mid
    as_predicted = rates(drafting, CHECK).decode_tps_per_request.mid
    quick = Point(workload=CHECK, decode_tps_per_request=as_predicted * 3.6 / usual)
    counted = quick.model_copy(update={"accepted": 3.6})
    assert anchored(drafting, HERE, (quick,)).decode_tps_per_request.mid > 1.1 * plain
    assert anchored(drafting, HERE, (counted,)).decode_tps_per_request.mid == pytest.approx(plain)
    there = anchored(drafting, CHECK, (counted,)).decode_tps_per_request
    assert there.mid == pytest.approx(counted.decode_tps_per_request), "at its own point it is the prediction"


def test_distance_is_zero_only_for_the_same() -> None:
    assert distance(HERE, HERE) == 0
    assert distance(HERE, HERE.model_copy(update={"content": "code"})) == 1
    assert distance(HERE, HERE.model_copy(update={"concurrency": 4})) == 2


class TestPlans:
    """The entry points of the planner take measurements, and plans follow them."""

    MODEL = "Qwen/Qwen3.6-27B-FP8"

    @pytest.fixture
    def planned(self, sparks, ask):
        checkpoints = {self.MODEL: known_checkpoint(self.MODEL)}
        spec = ask(self.MODEL, engine="sglang", speculation={"method": "mtp", "tokens": 3})

        def planned(*measurements: LocalMeasurement):
            fleet = sparks(1)
            plan = plan_fleet([spec], fleet, checkpoints, measurements=measurements)
            return plan.deployments[0].groups[0].choice

        return planned

    def measured(self, **changed: object) -> LocalMeasurement:
        workload = usual(32_768, 1)
        point = Point(workload=workload, when="2026-11-20", decode_tps_per_request=31.0, ttft_ms=900.0)
        said = {"model": self.MODEL, "engine": "sglang", "method": "mtp", "k": 3, "point": point}
        return LocalMeasurement(**(said | changed))

    def test_what_was_measured_is_what_is_predicted(self, planned):
        found = planned(self.measured()).prediction
        assert found.decode_tps_per_request.mid == pytest.approx(31.0)
        assert found.ttft_ms.mid == pytest.approx(900.0)
        assert found.decode_tps_per_request.provenance is Provenance.MEASURED
        assert found.ttft_ms.provenance is Provenance.MEASURED
        assert "2026-11-20" in found.decode_tps_per_request.basis

    def test_several_at_once_are_corrected_by_one_alone(self, planned):
        plain, slow = planned(), self.measured()
        point = slow.point.model_copy(update={"decode_tps_aggregate": 5.0})
        found = planned(slow.model_copy(update={"point": point}))
        assert found.prediction.decode_tps_aggregate.mid < plain.prediction.decode_tps_aggregate.mid

    @pytest.mark.parametrize(
        "changed",
        [
            {"model": "another"},
            {"engine": "vllm"},
            {"tp": 2},
            {"dcp": 2},
            {"k": 2},
            {"method": "none", "k": 0},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_another_setup_changes_no_prediction(self, planned, changed):
        found, plain = planned(self.measured(**changed)), planned()
        assert (found.candidate, found.prediction) == (plain.candidate, plain.prediction)
        assert found.published == plain.published
        assert found.worth >= plain.worth, "more evidence never makes a candidate lose"
