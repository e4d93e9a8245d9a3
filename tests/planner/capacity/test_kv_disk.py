"""KV on the disk in whole plans: checkpoints known by name, on Sparks that were not read."""

import pytest

from sparkfleet.perf.prediction import MemoryUse
from sparkfleet.planner.capacity.kv_disk import able_stacks, clash, return_times
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.report.carry_over import same_engine
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal

MODEL = "openai/gpt-oss-120b"
GB = 10**9


@pytest.fixture
def ordered(ask, sparks, plan):
    """ordered(nodes=1, model=MODEL, **fields): the plan of one deployment with 100 GB of KV on the disk."""

    def ordered(nodes=1, model=MODEL, **fields):
        return plan(sparks(nodes), ask(model, **{"kv_disk": "100 GB", "context": 65536, **fields}))

    return ordered


@pytest.fixture
def choice(ordered):
    def choice(*args, **fields):
        return ordered(*args, **fields).of("m").groups[0].choice

    return choice


def part(rung, use):
    return sum(one.bytes for one in rung.prediction.memory_parts if one.name is use)


def test_its_memory_is_planned_beside_the_share_of_the_engine(choice):
    one, plain = choice(), choice(kv_disk=None, engine="vllm", image="vllm/vllm-openai:v0.32.0")
    staging = part(one, MemoryUse.KV_STAGING)
    assert one.candidate.kv_staging_bytes == int(staging) > 0
    assert one.candidate.kv_disk_bytes == 100 * GB
    whole, less = (rung.prediction.memory_bytes_per_rank.mid for rung in (one, plain))
    assert whole == pytest.approx(less + staging)
    assert one.candidate.memory_fraction == plain.candidate.memory_fraction
    assert (plain.candidate.kv_disk_bytes, plain.candidate.kv_staging_bytes) == (None, None)


def test_one_request_of_the_whole_context_has_room_in_it(choice):
    """One that has not waits without end, or gets nothing (tests/engines/test_real_kv_disk.py)."""
    for model in (MODEL, "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3.6-27B-FP8"):
        alone = choice(model=model, concurrency=1, speculation="none")
        kept = part(alone, MemoryUse.KV_CACHE) + part(alone, MemoryUse.STATES)
        assert alone.candidate.kv_staging_bytes > 1.1 * kept, model
        several = choice(model=model, concurrency=4, speculation="none")
        assert several.candidate.kv_staging_bytes == alone.candidate.kv_staging_bytes


def test_a_longer_context_needs_more_of_it(choice):
    short, long = (choice(context=context).candidate.kv_staging_bytes for context in (32768, 131072))
    assert 2 < long / short < 4


def test_the_plan_has_the_times_that_it_saves(ordered):
    found = ordered().of("m")
    text = " ".join(" ".join(explain_plan(found)).split())
    times = return_times(found.groups[0].choice)
    assert times.tokens == 65536
    assert times.read_s < times.prefill_s
    assert (
        "kv disk 100 GB on spark1: a prompt of 64K tokens comes back in about 10 s instead of 30 s, predicted"
        in text
    )
    assert "0.39 GB/s published for a Spark's disk" in text
    assert "GiB of memory: one request of the whole context on its way to the disk and back" in text


def test_without_it_no_plan_has_such_a_line(ordered):
    assert "kv disk" not in " ".join(explain_plan(ordered(kv_disk=None).of("m")))
    assert return_times(ordered(kv_disk=None).of("m").groups[0].choice) is None


def refused(found):
    (one,) = found.refused
    return " ".join(" ".join(explain_refusal(one, everything=True)).split())


def test_another_engine_is_refused_with_the_reason(ordered):
    assert "no plan has the settings" in refused(ordered(engine="sglang"))


def test_several_nodes_are_refused_with_the_reason(ordered):
    told = refused(ordered(2, parallel={"tp": 2}, engine="vllm"))
    assert "answers are wrong without an error" in told
    assert choice_nodes(ordered(2)) == 1


def choice_nodes(found):
    return found.of("m").groups[0].choice.candidate.shape.ranks


@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.28.0", "ghcr.io/somebody/vllm-build:latest"])
def test_an_older_or_unknown_release_is_refused(ordered, image):
    told = refused(ordered(engine="vllm", image=image))
    assert "kv-disk-release" in told


def test_drafts_of_a_hybrid_model_are_refused(ordered):
    told = refused(ordered(model="Qwen/Qwen3.6-27B-FP8", speculation="mtp", engine="vllm"))
    assert "kv-disk-hybrid-drafts" in told
    assert (
        ordered(model="Qwen/Qwen3.6-27B-FP8").of("m").groups[0].choice.candidate.speculation.method == "none"
    )


def test_a_cpu_is_refused(ask, cpu_node, plan):
    told = refused(plan(Fleet(nodes=(cpu_node("this"),)), ask("builtin:tiny", kv_disk="1 GB")))
    assert "vLLM keeps KV on the disk from a GPU only" in told


@pytest.mark.parametrize(
    "args",
    [
        ("--kv-transfer-config={}",),
        ("--kv-offloading-size", "4"),
        ("--no-enable-prefix-caching",),
        ("--prefix-caching-hash-algo=xxhash",),
    ],
)
def test_arguments_that_take_it_away_are_refused(ordered, args):
    told = refused(ordered(engine="vllm", engine_args=args))
    assert args[0].partition("=")[0] in told
    assert "leave one of the two out" in told


def test_other_arguments_are_not(ask):
    (variant,) = ask(
        MODEL, kv_disk="1 GB", engine_args=("--prefix-caching-hash-algo=sha256_cbor",)
    ).resolved()
    assert clash(variant) == ""
    (plain,) = ask(MODEL, engine_args=("--kv-offloading-size=4",)).resolved()
    assert clash(plain) == ""


def test_stacks_that_can_do_it_are_tried_only(ask):
    stacks = [Stack("vllm", version, "container", "i") for version in ("0.28.0", "", "0.32.0", "0.33.0")]
    (variant,) = ask(MODEL, kv_disk="1 GB").resolved()
    able, rejected = able_stacks(variant, stacks)
    assert [stack.version for stack in able] == ["0.32.0", "0.33.0"]
    assert [one.rule for one in rejected] == ["kv-disk-release"] * 2
    (plain,) = ask(MODEL).resolved()
    assert able_stacks(plain, stacks) == (stacks, [])


def test_a_better_prediction_of_its_memory_restarts_nothing_and_its_limit_does(choice):
    one = choice().candidate
    assert same_engine(one, one.model_copy(update={"kv_staging_bytes": 1}))
    assert not same_engine(one, one.model_copy(update={"kv_disk_bytes": 1}))
    assert not same_engine(one, one.model_copy(update={"kv_disk_bytes": None}))
