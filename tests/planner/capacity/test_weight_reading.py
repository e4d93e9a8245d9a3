"""The way in which vLLM reads its weight files, in whole plans: checkpoints known by name, with files of a given size."""

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.capacity.weight_reading import loading_times
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.report.explain.plan import explain_plan

MODEL = "Qwen/Qwen3.6-27B-FP8"
GB = 10**9


@pytest.fixture
def choice(ask, sparks):
    """choice(largest_file, nodes=1, **fields): the rung that is chosen, and the plan in words."""

    def choice(largest_file, nodes=1, total=130_600_000_000, *, model=MODEL, **fields):
        spec = ask(model, **{"engine": "vllm", "speculation": "none", **fields})
        checkpoint = known_checkpoint(model).model_copy(update={"largest_file": largest_file})
        found = plan_fleet([spec], sparks(nodes, total), {model: checkpoint}, None)
        plan = found.of("m")
        return plan.groups[0].choice, explain_plan(plan)

    return choice


def test_files_are_read_whole_if_the_node_has_the_memory_of_three(choice):
    rung, lines = choice(5 * GB)
    assert not rung.candidate.mmap
    line = " ".join(" ".join(lines).split())
    assert "weights 30 s (files read whole; mapped 3 min)" in line
    assert "predicted" in line


def test_files_that_are_not_known_are_mapped(choice):
    rung, lines = choice(None)
    assert rung.candidate.mmap
    assert not any("read whole" in line for line in lines)


@pytest.mark.parametrize(("largest", "mapped"), [(20 * GB, False), (28 * GB, True)])
def test_one_large_file_is_mapped(choice, largest, mapped):
    """31 GB of weights and three files of 20 leave a Spark its reserve, three of 28 do not."""
    assert choice(largest)[0].candidate.mmap is mapped


def test_a_small_spark_has_less_for_it(choice):
    assert choice(2 * GB, total=64 * GB)[0].candidate.mmap is False
    assert choice(5 * GB, total=64 * GB)[0].candidate.mmap is True


@pytest.mark.parametrize(
    "args",
    [
        ("--load-format=fastsafetensors",),
        ("--safetensors-load-strategy", "lazy"),
        ('--model-loader-extra-config={"enable_multithread_load": true}',),
    ],
)
def test_a_choice_of_the_deployment_is_kept(choice, args):
    assert choice(5 * GB, engine_args=args)[0].candidate.mmap


def test_a_rule_that_chooses_the_loader_is_kept(choice):
    image = "eugr/spark-vllm-b12x:latest"
    rung, _ = choice(5 * GB, nodes=2, model="deepseek-ai/DeepSeek-V4-Flash-0731", image=image)
    assert "--load-format=b12x" in rung.candidate.engine_args
    assert rung.candidate.mmap


def test_other_engines_are_left_alone(choice):
    assert choice(5 * GB, engine="sglang")[0].candidate.mmap


def test_without_mmap_nothing_warns_of_twice_the_memory(choice):
    model = "openai/gpt-oss-120b"
    mapped, read = (choice(size, model=model)[0] for size in (None, 5 * GB))
    assert any("mmap-double-memory" in note for note in mapped.notes)
    assert not any("mmap-double-memory" in note for note in read.notes)
    assert read.candidate.mmap is False


def test_each_rank_reads_all_files_and_maps_its_share():
    one, two = loading_times(82 * GB, 1), loading_times(82 * GB, 2)
    assert one.read == two.read == pytest.approx(88, rel=0.01)  # as published
    assert one.mapped == pytest.approx(521, rel=0.02)
    assert two.mapped == pytest.approx(one.mapped / 2)
