"""N-gram tables that an engine reads from the disk: they take no memory."""

from __future__ import annotations

import json

import pytest

from sparkfleet.knowledge.engines.images import IMAGES
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.memory.demand import weight_bytes
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import from_checkpoint
from sparkfleet.units import GIB

FLASH_NEXT = "RadixArk/Qwen3.8-Flash-Next-NVFP4"
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"


def first(plan):
    return plan.deployments[0].groups[0].choice


@pytest.mark.parametrize(("name", "gib"), [(FLASH_NEXT, 47.68), (V41, 192.0)])
def test_the_tables_of_a_model(name, gib):
    """WeZZard reads 47.68 GiB of PLE in FP8; tonyd2wild 203 GB of Engram, of which the scales are a 33rd."""
    checkpoint = known_checkpoint(name)
    assert checkpoint.table_bytes / GIB == pytest.approx(gib, rel=0.01)
    shape = from_checkpoint(checkpoint)
    kept, left = (weight_bytes(shape, MemoryConfig(disk_tables=on_disk)) for on_disk in (False, True))
    assert kept - left == pytest.approx(checkpoint.table_bytes)


def test_a_model_without_tables_has_none():
    assert known_checkpoint("Qwen/Qwen3.6-27B-FP8").table_bytes == 0


class TestOneSpark:
    def test_a_model_that_does_not_fit_with_its_tables_runs_without(self, sparks, plan, ask):
        choice = first(plan(sparks(1), ask(FLASH_NEXT)))
        assert choice.candidate.image == "lmsysorg/sglang:v0.5.21"
        assert "--ple-offload-backend=file" in choice.candidate.engine_args
        assert choice.prediction.memory_bytes_per_rank.mid < 105 * GIB

    def test_tables_that_each_start_writes_are_named_with_their_size(self, sparks, plan, ask):
        """Nothing counted them: a full disk ended the engine while it loaded."""
        (note,) = (one for one in first(plan(sparks(1), ask(FLASH_NEXT))).notes if "n-gram" in one)
        assert note.startswith("each start writes 51 GB of n-gram tables into its container: ")
        assert "`docker info -f '{{.DockerRootDir}}'`" in note

    def test_an_engine_that_takes_a_variable_gets_it(self, sparks, plan, ask):
        choice = first(plan(sparks(1), ask(FLASH_NEXT, engine="vllm")))
        assert not any("n-gram" in one for one in choice.notes)
        assert dict(choice.candidate.env)["VLLM_PLE_TABLE_MEMORY"] == "disk"

    def test_a_variable_of_the_deployment_stays(self, sparks, plan, ask):
        own = ask(FLASH_NEXT, engine="vllm", env={"VLLM_PLE_TABLE_MEMORY": "ram"})
        assert dict(first(plan(sparks(1), own)).candidate.env)["VLLM_PLE_TABLE_MEMORY"] == "ram"

    def test_an_image_that_keeps_them_is_refused_for_its_memory(self, sparks, plan, ask):
        made = plan(sparks(1), ask(FLASH_NEXT, image="vllm/vllm-openai:v0.28.0"))
        (refused,) = made.refused
        assert any("does not fit" in one.reason for one in refused.rejected)


def test_four_sparks_hold_what_eight_would_with_tables_in_memory(sparks, plan, ask):
    choice = first(plan(sparks(4, switch=True), ask(V41)))
    assert choice.candidate.shape.tp == 4
    flags = parse_flags(choice.candidate.engine_args)
    assert json.loads(flags["--engram-config"]) == {"cpu_offload": False, "table_memory": "disk"}
    assert {"--load-format", "--moe-backend", "--attention-backend"} <= set(flags)
    assert dict(choice.candidate.speculative)["attention_backend"] == "B12X"
    assert dict(choice.candidate.env)["VLLM_ENABLE_ROCE_ALLREDUCE"] == "1"


def test_an_engine_whose_images_keep_the_tables_is_out_by_its_least_need(sparks, plan, ask):
    """SGLang serves it from the disk with a build that is in no registry."""
    rejected = {
        one.what: one.reason for one in plan(sparks(4, switch=True), ask(V41)).deployments[0].rejected
    }
    assert "TP=4: does not fit: " in rejected["SGLang · DSPARK"]
    assert "needed on each of 4 nodes" in rejected["SGLang · DSPARK"]
    assert "only where it was built" in rejected["dsv41-4x-spark:canary-roce"]


def test_images_name_types_of_models_that_have_tables():
    named = {one.model_type for image in IMAGES.content.images for one in image.tables}
    assert named == {"qwen4_exp", "deepseek_v41"}
