"""Assumed Sparks, known checkpoints, and the planner."""

from collections.abc import Mapping

import pytest
from replannings import replanning

from sparkfleet.fleet.planning.named_images import NamedImage, named_image_lines, plans_with_named_images
from sparkfleet.fleet.planning.replanning import FEW, GAIN
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.deployment import Deployment

GPT_OSS = "openai/gpt-oss-120b"


def options(fleet: Fleet, *specs: Deployment) -> Mapping[str, tuple[NamedImage, ...]]:
    return plans_with_named_images(replanning(fleet, *specs))


def test_a_build_of_ones_own_and_an_old_fork_are_shown_with_their_gain(sparks, ask):
    found = options(sparks(1), ask(GPT_OSS))["m"]
    assert [one.image for one in found] == ["vllm-node-mxfp4:latest", "lmsysorg/sglang:spark"]
    assert found[0].gain > found[1].gain >= GAIN
    own, fork = " ".join(" ".join(named_image_lines(found)).split()).split("`image: ")[1:]
    assert own.startswith(
        f"vllm-node-mxfp4:latest`: {found[0].tps:.3g} tok/s, {found[0].gain:.1f}×; exists only where"
    )
    assert "; build it with `./build-and-copy.sh --exp-mxfp4` of eugr/spark-vllm-docker" in own
    assert "its rendezvous listens on every address" in fork
    assert "build it" not in fork


def test_what_is_hardly_faster_is_not_shown(sparks, ask):
    """On two Sparks a release is within 15 % of the fork with gpt-oss-20b."""
    found = options(sparks(2), ask("openai/gpt-oss-20b")).get("m", ())
    assert [one.image for one in found] == ["vllm-node-mxfp4:latest"]


def test_the_published_rates_are_within_the_bands(sparks, ask):
    """57 to 60 tok/s on one Spark, 69 to 76 on two, 50 to 53 of the fork (benchmarks.csv: n0001 to n0023)."""
    for nodes, image, low, high in [
        (1, "vllm-node-mxfp4:latest", 57.5, 60.1),
        (2, "vllm-node-mxfp4:latest", 69.0, 76.0),
        (1, "lmsysorg/sglang:spark", 50.0, 53.1),
    ]:
        spec = ask(GPT_OSS, image=image, parallel={"tp": nodes})
        checkpoint = known_checkpoint(GPT_OSS)
        assert checkpoint is not None
        plan = plan_fleet([spec], sparks(nodes), {GPT_OSS: checkpoint}).of("m")
        assert plan is not None
        band = plan.groups[0].choice.prediction.decode_tps_per_request
        assert band is not None
        assert band.low <= low <= high <= band.high


def test_under_many_requests_only_what_is_faster_then_is_shown(sparks, ask):
    """The fork has 140 tok/s of 32 requests, a release of vLLM 253 (gauravmm/autobench)."""
    found = options(sparks(1), ask(GPT_OSS, objective="throughput", concurrency=32)).get("m", ())
    assert "lmsysorg/sglang:spark" not in {one.image for one in found}


def test_a_deployment_that_names_an_image_or_many_of_them_get_none(sparks, ask):
    assert options(sparks(1), ask(GPT_OSS, image="vllm-node-mxfp4:latest")) == {}
    many = [ask(GPT_OSS, name=f"m{number}") for number in range(FEW + 1)]
    assert options(sparks(8, switch=True), *many) == {}
    assert named_image_lines(()) == []


def test_models_of_other_families_get_none(sparks, ask):
    assert options(sparks(1), ask("Qwen/Qwen3.6-27B-FP8")) == {}


class TestReleasesThatMend:
    """Releases that nobody has run on a Spark, if they mend what costs the choice rank."""

    def test_one_with_a_working_prefix_cache_is_shown_without_a_gain(self, sparks, ask):
        """0.32 was neither tried nor listed: its drafts are as fast, and its cache finds the earlier turns."""
        (one,) = options(sparks(1), ask("nvidia/Qwen3.8-27B-NVFP4"))["m"]
        assert one.image == "vllm/vllm-openai:v0.32.0"
        assert one.gain == pytest.approx(1.0, abs=0.05)
        assert one.mends == ("the prefix cache works",)
        line = " ".join(" ".join(named_image_lines([one])).split())
        assert "; the prefix cache works; unproven: No run on a Spark was published where we looked" in line

    def test_no_release_is_shown_that_has_the_same_fault(self, sparks, ask):
        found = options(sparks(4, switch=True), ask("QuantTrio/GLM-5.2-Int4-Int8Mix", engine="vllm"))
        assert found == {}, "all releases have the same kernel"

    def test_a_choice_without_a_fault_needs_none(self, sparks, ask):
        assert options(sparks(1), ask("Qwen/Qwen3.6-27B-FP8")) == {}
        assert options(sparks(1), ask("nvidia/Qwen3.8-27B-NVFP4", image="vllm/vllm-openai:v0.28.0")) == {}
