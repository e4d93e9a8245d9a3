"""The terms of a prediction sum to the prediction."""

import math
from pathlib import Path

import pytest

from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.planning.checkpoints import checkpoints_of
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.planner.report.effect_words import effect_words
from sparkfleet.planner.report.prediction_terms import prediction_sums, sum_lines
from sparkfleet.specs.deployment import drafts_of
from sparkfleet.specs.load import load_deployment, load_inventory

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def planned():
    """planned(NAME): the sums of each rung of a deployment's first group on two assumed Sparks, with the rungs."""
    inventory = load_inventory(ROOT / "docs/examples/inventory-two-sparks.yaml")
    nodes = tuple(inventory.nodes)
    fleet = Fleet(name="home", nodes=assume("dgx-spark", inventory), links=links_of(inventory), assumed=nodes)

    def planned(name):
        specs = [load_deployment(ROOT / f"deployments/{name}.yaml")]
        checkpoints = checkpoints_of(specs, fleet.nodes)
        plan = plan_fleet(specs, fleet, checkpoints, {}).of(specs[0].name)
        drafts = tuple((name, checkpoints[name]) for name in drafts_of(specs) if name in checkpoints)
        return [
            (
                rung,
                prediction_sums(
                    predictor_of(checkpoints[rung.candidate.model], (), drafts), fleet, plan.groups, number
                ),
            )
            for number, rung in enumerate(plan.groups[0].ladder)
        ]

    return planned


@pytest.mark.parametrize("name", ["qwen235b-tp2", "qwen3.5-122b-nvfp4", "gpt-oss-120b-eagle3"])
def test_terms_times_effects_are_the_prediction(planned, name):
    for rung, (itl, ttft) in planned(name):
        for found in (itl, ttft):
            product = math.fsum(term.ms for term in found.terms) * math.prod(e.factor for e in found.effects)
            assert product == pytest.approx(found.ms)
            total = found.ms / found.tokens_per_step * found.correction
            assert total == pytest.approx(found.predicted.mid)
            assert all(effect.n > 0 for effect in found.effects)
        assert 1e3 / itl.predicted.mid == pytest.approx(rung.prediction.decode_tps_per_request.mid)
        assert ttft.predicted == rung.prediction.ttft_ms


def test_without_rules_that_slow_and_measurements_nothing_is_corrected(planned):
    """Also a check that the setup is the one that was predicted: link, release, kernels."""
    for _, sums in planned("qwen235b-tp2"):
        assert [found.correction for found in sums] == pytest.approx([1, 1])


def test_an_amount_over_its_rate_is_the_time_at_the_ceiling(planned):
    ((_, (itl, ttft)), *_) = planned("qwen235b-tp2")
    weights = next(term for term in itl.terms if term.name == "weights")
    assert weights.rate == physics().ceilings.read_gb_per_s * 1e9
    assert 1e3 * weights.amount / weights.rate == pytest.approx(weights.ceiling_ms)
    assert 1e9 < weights.amount < 10e9, "bytes of a rank's attention and head"
    assert {term.unit for term in itl.terms} == {"bytes", "FLOP", ""}
    assert next(term for term in itl.terms if term.name == "latency").source.startswith("link: ")
    assert next(term for term in ttft.terms if term.name == "compute").unit == "FLOP"


def test_lines_have_every_term_and_end_in_the_prediction(planned):
    ((_, (itl, _)), *_) = planned("qwen235b-tp2")
    lines = list(sum_lines(itl))
    assert all(any(term.what in line for line in lines) for term in itl.terms)
    assert all(any(effect_words(effect.key) in line for line in lines) for effect in itl.effects)
    assert f"{itl.predicted.mid:.2f}" in lines[-1]
    assert "calibrated on" in lines[-1]


@pytest.mark.parametrize("slow", ["s1", "s4"])
def test_groups_beside_one_over_a_slow_cable_are_explained_as_they_were_predicted(
    spark, link, plan, ask, slow
):
    names = [f"s{number}" for number in range(1, 5)]
    cables = {slow: {"gb_per_s": 2.9, "latency_us": 90.0}}
    links = tuple(link(name, switch="sw", **cables.get(name, {})) for name in names)
    fleet = Fleet(nodes=tuple(map(spark, names)), links=links)
    model = "nvidia/Qwen3-235B-A22B-NVFP4"
    groups = plan(fleet, ask(model, parallel={"tp": 2}, replicas=2)).deployments[0].groups
    for found in prediction_sums(predictor_of(known_checkpoint(model)), fleet, groups):
        assert found.correction == pytest.approx(1)
