"""Assumed Sparks, known checkpoints, and the planner."""

from collections.abc import Mapping, Sequence

import pytest
from replannings import replanning

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.fewer_bits import (
    FewerBits,
    best_variant,
    fewer_bits_lines,
    plans_with_fewer_bits,
)
from sparkfleet.fleet.planning.replanning import FEW, GAIN, Replanning
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.plan import DeploymentPlan, Plan
from sparkfleet.specs.deployment import Deployment


def options(fleet: Fleet, *specs: Deployment) -> Mapping[str, tuple[FewerBits, ...]]:
    return plans_with_fewer_bits(replanning(fleet, *specs))


def test_what_fits_is_compared_in_speed(sparks, ask):
    found = options(sparks(1), ask("Qwen/Qwen3.6-27B"))["m"]
    assert [one.model for one in found] == ["nvidia/Qwen3.6-27B-NVFP4", "Qwen/Qwen3.6-27B-FP8"]
    assert found[0].gain > found[1].gain >= GAIN
    lines = fewer_bits_lines(found)
    assert "`model: nvidia/Qwen3.6-27B-NVFP4` (22 GB): " in lines[0]
    text = " ".join(" ".join(lines).split())
    assert (
        f"({found[0].published.words}), {found[0].gain:.1f}×; in NVIDIA's recipes; quality not measured"
        in text
    )
    assert text.count("quality not measured") == len(found)


def test_what_does_not_fit_is_served_in_fewer_bits(sparks, ask):
    (one,) = options(sparks(1), ask("meta-llama/Llama-3.3-70B-Instruct"))["m"]
    assert (one.model, one.gain) == ("nvidia/Llama-3.3-70B-Instruct-NVFP4", None)
    assert one.rung.candidate.shape.nodes == ("spark1",)
    assert "fits on spark1, " in fewer_bits_lines([one])[0]


def test_if_no_weights_fit_each_has_its_nearest(sparks, ask):
    found = options(sparks(1), ask("Qwen/Qwen3-235B-A22B"))["m"]
    assert all(one.rung is None for one in found)
    assert found[0].bytes_on_disk == min(one.bytes_on_disk for one in found)
    assert "`model: nvidia/Qwen3-235B-A22B-NVFP4` (134 GB): fits on two linked nodes" in "\n".join(
        fewer_bits_lines(found)
    )


@pytest.mark.parametrize("objective", ["interactive", "throughput"])
def test_the_objective_decides_what_is_faster(sparks, ask, objective):
    found = options(sparks(1), ask("Qwen/Qwen3.6-27B", objective=objective, concurrency=8))["m"]
    prediction = found[0].rung.prediction
    band = prediction.decode_tps_aggregate if objective == "throughput" else prediction.decode_tps_per_request
    assert found[0].tps == band.mid


def test_without_gain_and_for_many_deployments_there_are_none(sparks, ask):
    assert options(sparks(1), ask("nvidia/Qwen3.6-27B-NVFP4")) == {}
    many = [ask("Qwen/Qwen3.6-27B", name=f"m{number}") for number in range(FEW + 1)]
    assert options(sparks(8, switch=True), *many) == {}
    assert fewer_bits_lines(()) == []


def test_weights_that_leave_room_for_the_usual_sizes_are_shown_without_much_gain(sparks, ask):
    (one,) = [
        one
        for one in options(sparks(2), ask("MiniMaxAI/MiniMax-M2.7"))["m"]
        if one.model.startswith("nvidia/")
    ]
    assert 1.0 <= one.gain < GAIN
    shown = " ".join(" ".join(fewer_bits_lines([one])).split())
    assert ", context 32768 × 4 instead of 8192 × 1; in NVIDIA's recipes; quality not measured" in shown


@pytest.mark.parametrize(
    ("sizes", "roomier"), [((65_536, 2), False), ((16_384, 8), False), ((32_768, 8), True)]
)
def test_more_of_one_size_and_less_of_the_other_is_no_more_room(sparks, ask, sizes, roomier):
    """Weights that are hardly faster are shown for larger sizes only, not for an exchange of the one for the other."""
    spec, fleet = ask("Qwen/Qwen3.6-27B-FP8"), sparks(1)

    def replan(specs, checkpoints):
        made = plan_fleet(specs, fleet, checkpoints)
        instead = specs[0].model != spec.model
        context, concurrency = sizes if instead else (32_768, 4)
        (group,) = made.deployments[0].groups
        rung, rate = group.choice, Band(low=10.0, mid=11.0 if instead else 10.0, high=12.0)
        rung = rung.model_copy(
            update={
                "candidate": rung.candidate.model_copy(
                    update={"context": context, "concurrency": concurrency}
                ),
                "prediction": rung.prediction.model_copy(update={"decode_tps_per_request": rate}),
            }
        )
        group = group.model_copy(update={"ladder": (rung,)})
        return made.model_copy(
            update={"deployments": (made.deployments[0].model_copy(update={"groups": (group,)}),)}
        )

    checkpoints = {spec.model: known_checkpoint(spec.model)}
    found = plans_with_fewer_bits(Replanning([spec], replan([spec], checkpoints), checkpoints, replan))
    assert bool(found) is roomier


def test_other_deployments_keep_their_room(sparks, ask):
    """The second one fits beside the first only in fewer bits."""
    big = ask("openai/gpt-oss-120b", name="big")
    found = options(sparks(1), big, ask("Qwen/Qwen3.6-27B"))
    assert "big" not in found
    assert all(one.rung is not None for one in found["m"])


def test_without_a_predicted_speed_no_gain_is_known(sparks, ask):
    """As on nodes whose speed is not modelled: neither of two unknown speeds is the higher one."""
    spec = ask("Qwen/Qwen3.6-27B")
    known = known_checkpoint(spec.model)

    def replan(specs: Sequence[Deployment], checkpoints: Mapping[str, Checkpoint]) -> Plan:
        plan = plan_fleet(specs, sparks(1), checkpoints)
        return plan.model_copy(update={"deployments": tuple(map(without_speed, plan.deployments))})

    assert (
        plans_with_fewer_bits(
            Replanning([spec], replan([spec], {spec.model: known}), {spec.model: known}, replan)
        )
        == {}
    )


def without_speed(plan: DeploymentPlan) -> DeploymentPlan:
    (group,) = plan.groups
    unknown = {"decode_tps_per_request": None, "decode_tps_aggregate": None}
    rung = group.choice.model_copy(update={"prediction": group.choice.prediction.model_copy(update=unknown)})
    return plan.model_copy(update={"groups": (group.model_copy(update={"ladder": (rung,)}),)})


@pytest.mark.parametrize("content", ["mixed", "agent"])
def test_of_one_format_the_best_is_shown(sparks, ask, content):
    """NVIDIA's was shown alone, whose MTP head does not load; Red Hat's is faster, also for an agent."""
    one, *_ = [
        one
        for one in options(sparks(2), ask("zai-org/GLM-5.3-Flash", content=content))["m"]
        if "NVFP4" in one.model
    ]
    assert one.model == "RedHatAI/GLM-5.3-Flash-NVFP4"
    assert "answer wrongly" not in " ".join(fewer_bits_lines([one]))
    wrong = one.model_copy(
        update={"rung": one.rung.model_copy(update={"uncured": ("glm53-libertaidai-tokens",), "worth": 1e9})}
    )
    assert best_variant([], [wrong, one]) is one
    shown = " ".join(" ".join(fewer_bits_lines([wrong])).split())
    assert "; known to answer wrongly (`sparkfleet explain glm53-libertaidai-tokens`)" in shown
