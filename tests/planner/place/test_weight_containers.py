"""GGUF on llama.cpp alone, and safetensors on the others, through whole plans."""

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.prediction import MemoryUse
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.stacks import ENGINES
from sparkfleet.planner.place.weight_containers import engines_for

GPT_OSS = "ggml-org/gpt-oss-120b-GGUF:MXFP4"
MTP = "unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_M"


def refusal(plan, fleet, spec):
    (one,) = plan(fleet, spec).refused
    return one


def choice(plan, fleet, spec):
    found = plan(fleet, spec)
    assert not found.refused
    return found.deployments[0].groups[0].choice


def test_the_format_decides_the_engine():
    assert engines_for(known_checkpoint(GPT_OSS)) == ("llama.cpp",)
    others = engines_for(known_checkpoint("openai/gpt-oss-120b"))
    assert others == tuple(engine for engine in ENGINES if engine != "llama.cpp")


def test_a_gguf_is_planned_with_its_files_and_slots(sparks, plan, ask):
    rung = choice(plan, sparks(2), ask(GPT_OSS, context=65536, concurrency=8))
    found = rung.candidate
    assert (found.engine, found.quant, found.shape.ranks) == ("llama.cpp", "gguf-mxfp4", 1)
    assert found.gguf == known_checkpoint(GPT_OSS).gguf
    assert (found.context, found.concurrency, found.batch_tokens) == (65536, 8, 2048)
    assert (found.kv_dtype, found.memory_fraction) == ("auto", None)
    assert found.image.startswith("ghcr.io/ggml-org/llama.cpp:server-cuda13-b")
    assert ("NVIDIA_DISABLE_REQUIRE", "1") in found.env
    assert rung.published.exactly == pytest.approx(55.7, abs=0.1)
    band = rung.prediction.decode_tps_per_request
    assert band.low < 55.4 < band.high


def test_the_others_are_one_line(sparks, plan, ask):
    (one,) = plan(sparks(1), ask(GPT_OSS)).deployments
    assert [line.what for line in one.rejected if "the weights are GGUF" in line.reason] == [
        "vLLM, SGLang and TensorRT-LLM"
    ]


def test_safetensors_have_no_line_about_llama_cpp(sparks, plan, ask):
    (one,) = plan(sparks(1), ask("openai/gpt-oss-120b")).deployments
    assert not [line for line in one.rejected if "llama.cpp" in f"{line.what} {line.reason}"]


def test_an_engine_that_cannot_load_a_gguf_is_refused_with_what_would_do(sparks, plan, ask):
    (reason, *_) = refusal(plan, sparks(1), ask(GPT_OSS, engine="vllm")).rejected
    assert (reason.what, reason.why) == ("vLLM", "wanted")
    assert reason.reason.endswith("leave `engine` out, or name `model: openai/gpt-oss-120b`")


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("openai/gpt-oss-120b", "name `model: ggml-org/gpt-oss-120b-GGUF:MXFP4`"),
        ("Qwen/Qwen3.6-27B-FP8", "name a GGUF of it, such as `model: ORG/NAME-GGUF:Q4_K_M`"),
    ],
)
def test_llama_cpp_without_a_gguf_is_refused_with_one(sparks, plan, ask, model, named):
    (reason, *_) = refusal(plan, sparks(1), ask(model, engine="llama.cpp")).rejected
    assert reason.reason.endswith(named)


@pytest.mark.parametrize("parallel", [{"tp": 2}, {"pp": 2}, {"ep": 2}, {"dcp": 2}])
def test_it_is_not_split_over_nodes(sparks, plan, ask, parallel):
    reasons = [one.reason for one in refusal(plan, sparks(2), ask(GPT_OSS, parallel=parallel)).rejected]
    assert any(reason.startswith("llama.cpp serves on one node") for reason in reasons)


def test_replicas_are_on_nodes_of_their_own(sparks, plan, ask):
    (one,) = plan(sparks(2), ask(GPT_OSS, replicas=2)).deployments
    assert [group.choice.candidate.shape.nodes for group in one.groups] == [("spark1",), ("spark2",)]


def test_the_head_in_the_file_drafts(sparks, plan, ask):
    (one,) = plan(sparks(1), ask(MTP)).deployments
    methods = {
        rung.candidate.speculation.method: rung.candidate.speculation.tokens for rung in one.groups[0].ladder
    }
    assert methods == {"none": 0, "mtp": 2}  # NVIDIA's depth for this model
    pinned = choice(plan, sparks(1), ask(MTP, speculation={"method": "mtp", "tokens": 4}))
    assert pinned.candidate.speculation.tokens == 4


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ngram", "nobody has published it for this model with this engine"),
        ("eagle3", "no draft for this model is published"),
        ("dflash", "williamliao/Qwen3.6-35B-A3B-DFlash-GGUF:Q8_0 is published, and nobody has measured it"),
        ("nextn", "llama.cpp has no such method; it has MTP"),
    ],
)
def test_methods_that_are_not_tried_have_a_reason(sparks, plan, ask, method, words):
    (one,) = plan(sparks(1), ask(MTP)).deployments
    (line,) = (line for line in one.rejected if method in line.methods)
    assert words in line.reason


def test_a_file_without_the_head_drafts_nothing(sparks, plan, ask):
    one = refusal(plan, sparks(1), ask(GPT_OSS, speculation="mtp"))
    assert any("no MTP head" in line.reason for line in one.rejected)


def test_more_slots_than_it_has_are_refused(sparks, plan, ask):
    spec = ask(MTP, context=2048, concurrency=300, speculation="none")
    assert any(one.rule == "llama-cpp-slots" for one in refusal(plan, sparks(1), spec).rejected)


def test_its_own_arguments_count(sparks, plan, ask):
    args = ["--cache-type-k=q8_0", "--cache-type-v=q8_0", "-ngl", "99", "--ubatch-size=512"]
    with_args = choice(plan, sparks(1), ask(GPT_OSS, engine_args=args))
    plain = choice(plan, sparks(1), ask(GPT_OSS))
    assert (with_args.candidate.kv_dtype, with_args.candidate.batch_tokens) == ("q8_0", None)
    assert with_args.prediction.memory_bytes_per_rank.mid < plain.prediction.memory_bytes_per_rank.mid
    assert with_args.prediction.prefill_tps.mid < plain.prediction.prefill_tps.mid


@pytest.mark.parametrize(
    "args", [["-c", "8192"], ["-np", "4"], ["--host=0.0.0.0"], ["--rpc=a:1"], ["--spec-type=draft-mtp"]]
)
def test_what_sparkfleet_manages_is_refused(sparks, plan, ask, args):
    (reason, *_) = refusal(plan, sparks(1), ask(GPT_OSS, engine_args=args)).rejected
    assert f"{args[0].partition('=')[0]} is managed by sparkfleet" in reason.reason


def test_a_flag_that_the_release_does_not_have_is_noted(sparks, plan, ask):
    """`--no-mmap` is in most published lines, and gone since `--load-mode`."""
    notes = choice(plan, sparks(1), ask(GPT_OSS, engine="llama.cpp", engine_args=["--no-mmap"])).notes
    assert any("--no-mmap" in note for note in notes)


def test_what_does_not_fit_names_no_bits_that_no_file_has(sparks, plan, ask):
    one = refusal(plan, sparks(1), ask("unsloth/MiniMax-M2.7-GGUF:Q8_0"))
    assert not any("FP8" in near or "NVFP4" in near for near in one.nearest)


DFLASH2 = "incoai/Qwen3.8-27B-DFlash2-GGUF:Q4_K_M"
DENSE = "unsloth/Qwen3.8-27B-GGUF:UD-Q4_K_XL"


def test_a_published_draft_is_a_second_file_with_its_size(sparks, plan, ask):
    rung = choice(plan, sparks(1), ask(DENSE, context=32768, speculation="dflash2"))
    found = rung.candidate
    assert (found.speculation.draft, found.speculation.tokens) == (DFLASH2, 7)
    assert found.gguf_draft.model == "Qwen3.8-27B-DFlash2-Q4_K_M.gguf"
    parts = {part.name: part.bytes for part in rung.prediction.memory_parts}
    assert parts[MemoryUse.DRAFTER] == pytest.approx(1.143e9)
    assert parts[MemoryUse.DRAFT_KV] == 5 * 2048 * 32768 * found.concurrency * 2


@pytest.mark.parametrize(
    ("draft", "file"),
    [
        ("z-lab/Qwen3.8-27B-DFlash2-GGUF", "Qwen3.8-27B-DFlash2-Q4_K_M.gguf"),
        ("z-lab/Qwen3.8-27B-DFlash2-GGUF:Q8_0", "Qwen3.8-27B-DFlash2-Q8_0.gguf"),
        ("me/Mine-GGUF:BF16", "Mine-BF16.gguf"),
        ("/models/mine/d-Q8_0.gguf", "d-Q8_0.gguf"),
    ],
)
def test_a_drafts_file_is_the_published_one_or_named_as_usual(sparks, plan, ask, draft, file):
    wanted = {"method": "dflash2", "tokens": 7, "draft": draft}
    found = choice(plan, sparks(1), ask(DENSE, context=32768, speculation=wanted)).candidate
    assert (found.gguf_draft.model, found.speculation.draft) == (file, draft)


def test_lookups_are_an_explicit_choice(sparks, plan, ask):
    assert choice(plan, sparks(1), ask(GPT_OSS, content="code")).candidate.speculation.method == "none"
    found = choice(plan, sparks(1), ask(GPT_OSS, speculation="ngram")).candidate
    assert (found.speculation.method, found.gguf_draft) == ("ngram", None)


def test_a_model_whose_layers_are_not_given_out_is_refused_with_what_needs_none(sparks, plan, ask):
    known = known_checkpoint("ggml-org/GLM-4.7-Flash-GGUF:Q8_0").model_copy(
        update={"id": "/models/glm", "weights_known": True}
    )
    wanted = {"method": "eagle3", "tokens": 3, "draft": "/models/head"}
    found = plan_fleet([ask("/models/glm", speculation=wanted)], sparks(1), {"/models/glm": known})
    words = " ".join(one.reason for one in found.refused[0].rejected)
    assert f"does not give out for {known.model_type}" in words
    assert "`speculation: draft` reads none" in words
