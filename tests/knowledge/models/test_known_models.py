import re

import pytest

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.errors import FactError, SpecError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import (
    MODELS,
    checkpoint_if_known,
    config_name,
    known_checkpoint,
    quant_in_name,
)

ENTRY = '{id: a, match: ["org/a"], config: openai/gpt-oss-120b, sources: [s], date: "2026-01"}'


def name_of(known):
    """A name that its first glob meets: the last of each set of letters, nothing for a star."""
    chosen = re.sub(r"\[[^]]*(.)\]", r"\1", known.match[0])
    return chosen.replace("*/", "org/").replace("*", "")


@pytest.mark.parametrize("known", MODELS.content.models, ids=lambda known: known.id)
def test_every_entry_gives_facts(known):
    checkpoint = known_checkpoint(name_of(known))
    assert checkpoint is not None
    assert not checkpoint.weights_known
    assert not known.license or checkpoint.license.id == known.license
    assert (checkpoint.mtp_layers, checkpoint.vision) == (known.mtp, known.vision)
    if known.gb is not None:
        assert checkpoint.bytes_on_disk / 1e9 == pytest.approx(known.gb, rel=0.01)


@pytest.mark.parametrize("known", MODELS.content.models, ids=lambda known: known.id)
def test_an_entry_is_the_first_that_its_name_meets(known):
    assert next(one for one in MODELS.content.models if one.names(name_of(known))) is known


@pytest.mark.parametrize(
    ("model", "gb", "source"),
    [
        ("Qwen/Qwen3.6-27B-FP8", 30.866866928, "noonghunna/club-3090: the sum of its files"),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", 2 * 57.64 * 1.0737, "field report 004: 57.64 GiB per node"),
        ("bjk110/SPARK_Qwen3.5-122B-A10B-NVFP4", 75, "field report 004"),
        ("Qwen/Qwen3.5-122B-A10B", 250, "field report 004: 234 GiB, called ~250 GB"),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 35 * 1.0737, "field report 002: 35 GiB"),
        ("Intel/Qwen3.6-35B-A3B-int4-mixed-AutoRound", 21, "field report 002"),
        ("openai/gpt-oss-120b", 61 * 1.0737, "field report 004: 61 GiB"),
        (
            "deepseek-ai/DeepSeek-V4-Flash-0731",
            167,
            "MiaAI-Lab and others: the maker publishes no larger weights",
        ),
        ("fraserprice/DeepSeek-V4-Flash-DSpark", 167, "its fine-tunes neither"),
        ("lukealonso/MiMo-V2.5-NVFP4", 171, "Weschera/spark-bench"),
        ("XiaomiMiMo/MiMo-V2.5", 315, "luisefigueroa/pulsar MODELS.md: FP8"),
        ("stepfun-ai/Step-3.7-Flash-NVFP4", 129, "Weschera/spark-bench"),
    ],
)
def test_sizes_are_as_published(model, gb, source):
    assert known_checkpoint(model).bytes_on_disk / 1e9 == pytest.approx(gb, rel=0.06), source


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen3-Coder-Next-FP8", 80),
        ("zai-org/GLM-4.7-Flash", 30),
        ("mistralai/Mistral-Small-4-119B-2603", 119),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 109),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 400),
        ("zai-org/GLM-5.3-Flash", 313),  # 320 with its MTP layer
        ("poolside/Laguna-M.1-NVFP4", 225),
        ("LiquidAI/LFM2.5-2.6B", 2.6),
        ("google/gemma-4-12B-it", 12),
        ("RedHatAI/gemma-4-12B-it-NVFP4", 12),
        ("saricles/MiniMax-M2.7-REAP-172B-A10B-NVFP4-GB10", 172),  # a quarter of the experts is left out
        ("nvidia/NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B-NVFP4", 75),
        ("inclusionAI/Ling-3.0-flash", 124),
    ],
)
def test_keys_that_a_summary_leaves_out_make_the_published_number_of_parameters(model, billions):
    assert known_checkpoint(model).total_parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("mistralai/Devstral-2-123B-Instruct-2512", "mistralai/Devstral-2-123B-Instruct-2512"),
        ("cyankiwi/Devstral-Small-2-24B-Instruct-2512-AWQ", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
        ("mistralai/Devstral-Small-2507", "mistralai/Devstral-Small-2507"),
        ("mistralai/Mistral-Small-4-119B-2603", "mistralai/Mistral-Small-4-119B-2603"),
        ("microsoft/phi-4", "microsoft/phi-4"),
        ("nvidia/Phi-4-reasoning-plus-NVFP4", "microsoft/phi-4"),
        ("microsoft/Phi-4-mini-instruct", "microsoft/Phi-4-mini-instruct"),
        ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-9B"),
        ("Qwen/Qwen3.5-27B-FP8", "Qwen/Qwen3.5-27B"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen/Qwen2.5-32B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-8B"),
        ("zai-org/GLM-4.6V-Flash", "zai-org/GLM-4.6V-Flash"),
        ("cyankiwi/GLM-4.6V-AWQ-4bit", "zai-org/GLM-4.6V"),
        ("QuantTrio/GLM-4.6-AWQ", "zai-org/GLM-4.7"),
        ("QuantTrio/Qwen3-VL-235B-A22B-Instruct-AWQ", "Qwen/Qwen3-VL-235B-A22B-Instruct"),
        ("google/gemma-3-1b-it", "google/gemma-3-1b-it"),
        ("RedHatAI/gemma-3-12b-it-FP8-dynamic", "google/gemma-3-12b-it"),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2", "nvidia/NVIDIA-Nemotron-Nano-12B-v2"),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-NVFP4-QAD", "nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL"),
        ("moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.5"),
        ("nvidia/Kimi-K2.6-NVFP4", "nvidia/Kimi-K2.6-NVFP4"),
    ],
)
def test_a_general_glob_leaves_variants_with_other_shapes_alone(model, config):
    assert config_name(model) == config


@pytest.mark.parametrize(
    ("model", "kinds", "kv_bytes"),
    [
        # KV bytes: keys and values of 16 bits, per token, of the layers that attend to all tokens
        ("google/gemma-3-27b-it", {"full": 10, "sliding": 52}, 10 * 16 * 2 * 128 * 2),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", {"full": 64}, 64 * 8 * 2 * 128 * 2),
        ("arcee-ai/Trinity-Mini", {"full": 8, "sliding": 24}, 8 * 4 * 2 * 128 * 2),
        ("allenai/Olmo-3-32B-Think", {"full": 16, "sliding": 48}, 16 * 8 * 2 * 128 * 2),
        ("LGAI-EXAONE/EXAONE-4.0-32B", {"full": 16, "sliding": 48}, 16 * 8 * 2 * 128 * 2),
        ("CohereLabs/command-a-03-2025", {"full": 16, "sliding": 48}, 16 * 8 * 2 * 128 * 2),
        ("ibm-granite/granite-4.0-h-small", {"full": 4, "linear": 36}, 16_384),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", {"full": 4, "linear": 27, "none": 25}, 16_384),
        ("LiquidAI/LFM2-8B-A1B", {"full": 6, "linear": 18}, 6 * 8 * 2 * 64 * 2),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"mla": 6, "linear": 21}, 6 * 576 * 2),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", {"full": 49, "none": 31}, 49 * 8 * 2 * 128 * 2),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", {"mla": 61}, 61 * 576 * 2),
        ("rednote-hilab/dots.llm1.inst", {"full": 62}, 62 * 32 * 2 * 128 * 2),
    ],
)
def test_caches_of_layers(model, kinds, kv_bytes):
    layers = known_checkpoint(model).layers
    assert {
        kind.value: sum(one.layers for one in layers if one.kind is kind) for kind in {x.kind for x in layers}
    } == kinds
    growing = [one for one in layers if one.kind in (LayerKind.FULL, LayerKind.MLA)]
    # of a latent, keys are kept and values computed from them
    elements = sum(
        one.layers * one.kv_heads * (one.key_dim + (one.kind is LayerKind.FULL) * one.value_dim)
        for one in growing
    )
    assert 2 * elements == kv_bytes


@pytest.mark.parametrize(
    ("model", "window"),
    [("google/gemma-3-27b-it", 1024), ("arcee-ai/Trinity-Mini", 2048), ("allenai/Olmo-3-32B-Think", 4096)],
)
def test_windows(model, window):
    assert {one.window for one in known_checkpoint(model).layers} == {None, window}


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("Qwen/Qwen3-30B-A3B", 40_960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("RedHatAI/Qwen3-235B-A22B-Instruct-2507-NVFP4", 262_144),
        ("microsoft/Phi-4-reasoning-plus", 32_768),
        ("mistralai/Mistral-Small-4-119B-2603-NVFP4", 1_048_576),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 1_010_000),
        ("Qwen/Qwen2.5-14B-Instruct", 32_768),
        ("Qwen/Qwen2.5-14B", 131_072),
        ("Qwen/Qwen2.5-1.5B-Instruct", 32_768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 131_072),
        ("mistralai/Ministral-3-3B-Instruct-2512", 262_144),
        ("Qwen/Qwen3.5-0.8B", 262_144),
        ("Qwen/Qwen3.5-2B", 262_144),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", 262_144),
    ],
)
def test_contexts_of_updates(model, tokens):
    assert known_checkpoint(model).max_positions == tokens


@pytest.mark.parametrize(
    "model", ["moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6"]
)
def test_experts_alone_have_four_bits(model):
    parts = known_checkpoint(model).bytes_by_part()
    assert known_checkpoint(model).bytes_on_disk / 1e9 == pytest.approx(594, rel=0.01)
    assert parts[Part.EXPERTS] / 1e9 == pytest.approx(570.7, rel=0.01)


@pytest.mark.parametrize(
    ("model", "reason", "remedy"),
    [
        ("BAAI/bge-m3", "vectors or scores", "engine: custom"),
        ("Qwen/Qwen3-Embedding-8B", "vectors or scores", "engine: custom"),
        ("Qwen/Qwen3-Reranker-0.6B", "vectors or scores", "engine: custom"),
        ("jinaai/jina-embeddings-v3", "vectors or scores", "engine: custom"),
        ("openai/whisper-large-v3-turbo", "speech", "engine: custom"),
        ("nvidia/parakeet-tdt-0.6b-v3", "speech", "engine: custom"),
        ("black-forest-labs/FLUX.1-dev", "pictures", "engine: custom"),
        ("nvidia/diffusiongemma-26B-A4B-it-NVFP4", "diffusion", "engine: custom"),
        ("nvidia/Phi-4-multimodal-instruct-NVFP4", "KV cache", "models pull nvidia/Phi-4"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_reason(model, reason, remedy):
    with pytest.raises(FactError) as refused:
        known_checkpoint(model)
    assert refused.value.what.startswith(model)
    assert reason in refused.value.means
    assert remedy in refused.value.do


@pytest.mark.parametrize(
    "model",
    [
        "turboderp/GLM-5.3-Flash-exl3",
        "unsloth/gpt-oss-20b GGUF",
        "mlx-community/Qwen3-8B-4bit",
        "lmstudio-community/Qwen3-8B-MLX-4bit",
    ],
)
def test_a_size_that_is_not_in_the_name_is_not_guessed(model):
    with pytest.raises(FactError, match=r"stored as (EXL3|GGUF) or MLX"):
        known_checkpoint(model)


@pytest.mark.parametrize(
    ("model", "bits"),
    [
        ("turboderp/GLM-5.3-Flash-exl3 4.05bpw", 4.05),
        ("Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw", 4.0),
        ("brandonmusic/GLM-5.3-Flash-tr3-4bpw", 4.0),
        ("somebody/Qwen3.6-27B-EXL3-3.5bpw-tuned", 3.5),
        ("turboderp/GLM-5.3-Flash-exl3@3.05bpw", 3.05),
    ],
)
def test_exl3_is_known_by_the_bits_in_a_name(model, bits):
    found = known_checkpoint(model)
    scheme = found.quantization.scheme
    assert (scheme.format, scheme.stored_bits) == ("exl3", pytest.approx(bits))
    assert found.quantization.scheme_of(Part.HEAD).stored_bits == 6


@pytest.mark.parametrize(
    ("model", "tokens"), [("stepfun-ai/Step-3.7-Flash-NVFP4", 262144), ("XiaomiMiMo/MiMo-V2.5", 1048576)]
)
def test_contexts_that_were_served_are_possible(model, tokens):
    assert known_checkpoint(model).max_positions >= tokens


def test_a_revision_does_not_matter():
    assert known_checkpoint("openai/gpt-oss-120b@main") == known_checkpoint("openai/gpt-oss-120b")


def test_a_head_that_was_dropped_is_not_counted():
    assert Part.MTP not in known_checkpoint("Qwen/Qwen3-30B-A3B").bytes_by_part()
    assert known_checkpoint("Qwen/Qwen3.6-27B-FP8").bytes_by_part()[Part.MTP] > 0


def test_siblings_have_their_shapes_by_name():
    tune = known_checkpoint("somebody/Qwen3.6-27B-story-NVFP4")
    base = known_checkpoint("Qwen/Qwen3.6-27B-FP8")
    assert tune.layers == base.layers
    assert tune.quantization.scheme.format == "nvfp4"
    assert tune.license.kind == "unknown"


@pytest.mark.parametrize(
    ("model", "license_id", "kind"),
    [
        ("Qwen/Qwen3-32B", "apache-2.0", "open-source"),
        ("Qwen/Qwen3-32B-FP8", "apache-2.0", "open-source"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "apache-2.0", "open-source"),
        ("Qwen/Qwen3-VL-8B-Instruct", "", "unknown"),
        ("nvidia/Qwen3-32B-NVFP4", "", "unknown"),
        ("Qwen/Qwen2.5-72B-Instruct", "qwen", "other"),
        ("google/gemma-4-12B-it", "apache-2.0", "open-source"),
        ("google/gemma-4-26B-A4B", "apache-2.0", "open-source"),
        ("google/gemma-3-27b-it", "gemma", "other"),
        ("zai-org/GLM-4.5-Air", "mit", "open-source"),
        ("zai-org/GLM-4.7", "", "unknown"),
        ("zai-org/GLM-4.7-Flash", "mit", "open-source"),
        ("zai-org/GLM-5-FP8", "mit", "open-source"),
        ("deepseek-ai/DeepSeek-R1", "mit", "open-source"),
        ("deepseek-ai/DeepSeek-V3", "", "unknown"),
        ("mistralai/Mixtral-8x7B-v0.1", "apache-2.0", "open-source"),
        ("mistralai/Mistral-Small-4-119B-2603", "apache-2.0", "open-source"),
        ("mistralai/Mistral-Medium-3.5-128B", "modified-mit", "other"),
        ("somebody/Mistral-Medium-3.5-128B-NVFP4", "", "unknown"),
        ("moonshotai/Kimi-K2-Instruct", "modified-mit", "other"),
    ],
)
def test_a_license_is_that_of_the_makers_own_upload(model, license_id, kind):
    found = known_checkpoint(model).license
    assert (found.id, found.kind) == (license_id, kind)


def test_a_license_names_the_owner():
    globs = [glob for one in MODELS.content.licenses for glob in one.match]
    assert all(re.match(r"[\w-]+/", glob) for glob in globs)


def test_nothing_is_made_up():
    assert known_checkpoint("nobody/has-this") is None


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("org/M-NVFP4", "nvfp4"), ("nvidia/M-FP4", "nvfp4"), ("org/M-MXFP4", "mxfp4"), ("org/M-FP8", "fp8"),
        ("org/M-GPTQ-Int4", "gptq-int4"), ("org/M-AWQ", "awq"),
        ("org/M-bnb-4bit", "nf4"), ("org/M-bnb-8bit", "bnb-int8"),
        ("org/M-int4-AutoRound", "int4-autoround"),
        ("org/M-W4A16", "int4"), ("fp8-org/M", None), ("org/M", None),
    ],
)  # fmt: skip
def test_quantisation_in_names(name, quant):
    assert quant_in_name(name) == quant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.replace("openai/gpt-oss-120b", "openai/none"), "not in measurements"),
        (ENTRY.replace("[s]", "[]"), "source"),
        (ENTRY.replace("id: a,", "id: a, gb: -1,"), "gb"),
        (ENTRY.replace("match", "matches"), "match"),
    ],
)
def test_wrong_entries_are_named(text, said):
    with pytest.raises(SpecError) as error:
        MODELS.read(f"version: 1\nunshaped: []\nlicenses: []\nmodels:\n- {text}\n")
    assert said in error.value.what


def test_every_model_of_known_shapes_has_a_limit_of_its_context():
    """Seven had none, so that a plan offered contexts which no engine starts with."""
    names = {one for one in architectures() if "transformers default" not in one}
    known = filter(None, map(checkpoint_if_known, names))
    assert [one.id for one in known if one.max_positions is None] == []
