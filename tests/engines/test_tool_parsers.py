"""Parsers by family, engine and release."""

from __future__ import annotations

import pytest

from sparkfleet.engines.tool_parsers import FAMILIES, parsers_of
from sparkfleet.knowledge.engines.engine_flags import flag_faults

NONE = ("", "")


@pytest.mark.parametrize(
    ("model", "vllm", "sglang"),
    [
        ("Qwen/Qwen3.6-35B-A3B-FP8", ("qwen3", "qwen3_xml"), ("qwen3", "qwen3_coder")),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", ("", "qwen3_xml"), ("", "qwen3_coder")),
        ("Qwen/Qwen3-Coder-Next-FP8", ("", "qwen3_xml"), ("", "qwen3_coder")),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", ("", "hermes"), ("", "qwen")),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", ("deepseek_r1", "hermes"), ("qwen3-thinking", "qwen")),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", ("deepseek_r1", "hermes"), ("qwen3-thinking", "qwen")),
        ("Qwen/Qwen3-4B-Instruct-2507", ("", "hermes"), ("", "qwen")),
        ("nvidia/Qwen3-32B-NVFP4", ("qwen3", "hermes"), ("qwen3", "qwen")),
        ("Qwen/Qwen3-8B-Base", NONE, NONE),
        ("Qwen/Qwen3-Embedding-8B", NONE, NONE),
        ("Qwen/Qwen3-VL-32B-Instruct", NONE, ("", "qwen")),
        ("Qwen/Qwen2.5-72B-Instruct", ("", "hermes"), ("", "qwen25")),
        ("Qwen/Qwen2.5-VL-7B-Instruct", NONE, NONE),
        ("Qwen/QwQ-32B", ("deepseek_r1", "hermes"), ("", "qwen25")),
        ("mistralai/Devstral-2-123B-Instruct-2512", ("", "mistral"), ("", "mistral")),
        ("mistralai/Devstral-Small-2507", ("", "mistral"), ("", "mistral")),
        ("mistralai/Ministral-3-14B-Instruct-2512", ("", "mistral"), ("", "mistral")),
        ("mistralai/Ministral-3-8B-Reasoning-2512", ("mistral", "mistral"), NONE),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", ("", "mistral"), ("", "mistral")),
        ("mistralai/Mistral-Small-4-119B-2603", ("mistral", "mistral"), NONE),
        ("mistralai/Mistral-Medium-3.5-128B", ("mistral", "mistral"), NONE),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", ("", "mistral"), ("", "mistral")),
        ("mistralai/Mistral-Large-Instruct-2411", ("", "mistral"), ("", "mistral")),
        ("mistralai/Codestral-22B-v0.1", NONE, NONE),
        ("ibm-granite/granite-4.0-h-small", ("", "granite4"), NONE),
        ("ibm-granite/granite-4.0-h-tiny-base", NONE, NONE),
        ("tencent/Hunyuan-A13B-Instruct", ("hunyuan_a13b", "hunyuan_a13b"), NONE),
        ("moonshotai/Kimi-K2-Instruct-0905", ("", "kimi_k2"), ("", "kimi_k2")),
        ("moonshotai/Kimi-K2-Thinking", ("kimi_k2", "kimi_k2"), ("kimi_k2", "kimi_k2")),
        ("nvidia/Kimi-K2.6-NVFP4", ("kimi_k2", "kimi_k2"), ("kimi_k2", "kimi_k2")),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", NONE, NONE),
        ("zai-org/GLM-4.5-Air", ("glm45", "glm45"), ("glm45", "glm45")),
        ("zai-org/GLM-4.5-Air-Base", NONE, NONE),
        ("zai-org/GLM-4.6V-Flash", ("glm45", "glm45"), ("glm45", "glm45")),
        ("Tengyunw/GLM-4.7-NVFP4", ("glm45", "glm47"), ("glm45", "glm47")),
        ("zai-org/GLM-5.2-FP8", ("glm45", "glm47"), ("glm45", "glm47")),
        ("zai-org/GLM-5.3-Flash", ("glm45", "glm47"), ("glm45", "glm47")),
        ("allenai/Olmo-3-32B-Think", ("olmo3", "olmo3"), NONE),
        ("allenai/Olmo-3.1-32B-Instruct", ("", "olmo3"), NONE),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", ("", "seed_oss"), NONE),
        ("baidu/ERNIE-4.5-21B-A3B-Thinking", ("ernie45", "ernie45"), NONE),
        ("baidu/ERNIE-4.5-21B-A3B-PT", NONE, NONE),
        ("inclusionAI/Ling-3.0-flash", ("ling3", "ling3"), ("ling3", "ling3")),
        ("inclusionAI/Ling-flash-2.0", NONE, NONE),
        ("XiaomiMiMo/MiMo-V2-Flash", ("qwen3", "qwen3_xml"), NONE),
        ("XiaomiMiMo/MiMo-V2.5", ("mimo", "mimo"), ("mimo", "mimo")),
        ("deepseek-ai/DeepSeek-V4-Pro", ("deepseek_v4", "deepseek_v4"), ("deepseek-v4", "deepseekv4")),
        ("deepseek-ai/DeepSeek-V3.1", NONE, NONE),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", NONE, NONE),
        ("MiniMaxAI/MiniMax-M3", ("minimax_m3", "minimax_m3"), ("minimax-m3", "minimax-m3")),
        ("MiniMaxAI/MiniMax-M2.7", ("minimax_m2_append_think", "minimax_m2"), ("minimax-append-think", "minimax-m2")),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", ("nemotron_v3", "qwen3_coder"), ("nemotron_3", "qwen3_coder")),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", ("nemotron_v3", "qwen3_coder"), ("nemotron_3", "qwen3_coder")),
        ("nvidia/NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B-NVFP4", ("nemotron_v3", "qwen3_coder"), NONE),
        ("nvidia/Nemotron-Cascade-2-30B-A3B", ("nemotron_v3", "qwen3_coder"), NONE),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", ("deepseek_r1", "hermes"), ("qwen3-thinking", "qwen")),
        ("poolside/Laguna-S-2.1", ("poolside_v1", "poolside_v1"), ("poolside_v1", "poolside_v1")),
        ("stepfun-ai/Step-3.7-Flash", ("step3p5", "step3p5"), ("step3p5", "step3p5")),
        ("tencent/Hy3-preview", ("hy_v3", "hy_v3"), NONE),
        ("thinkingmachines/Inkling-Small-NVFP4", ("inkling", "inkling"), ("inkling", "inkling")),
        ("meta-models/Muse-Glimmer-30B", ("muse_glimmer", "muse_glimmer"), ("muse", "muse")),
        ("openai/gpt-oss-20b", ("openai_gptoss", "openai"), ("gpt-oss", "gpt-oss")),
        ("google/gemma-4-26B-A4B-it", ("gemma4", "gemma4"), ("gemma4", "gemma4")),
        ("google/gemma-3-27b-it", NONE, NONE),
        ("meta-llama/Llama-3.3-70B-Instruct", ("", "llama3_json"), ("", "llama3")),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", ("", "llama3_json"), ("", "llama3")),
        ("meta-llama/Llama-3.2-1B", NONE, NONE),
        ("NousResearch/Hermes-3-Llama-3.1-8B", NONE, NONE),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", NONE, NONE),
    ],
)  # fmt: skip
def test_a_family_has_the_parsers_of_its_recipe(model, vllm, sglang):
    assert parsers_of(model, "vllm", "0.32.0+cpu") == vllm
    assert parsers_of(f"/models/{model}", "vllm") == vllm
    assert parsers_of(model, "sglang", "0.5.23") == sglang
    assert parsers_of(model, "trtllm") == NONE


@pytest.mark.parametrize(
    ("engine", "version", "model", "found"),
    [
        ("vllm", "0.19.0", "ibm-granite/granite-4.0-h-small", NONE),
        ("vllm", "0.20.0", "ibm-granite/granite-4.0-h-small", ("", "granite4")),
        ("vllm", "0.12.0", "zai-org/GLM-4.7", ("glm45", "")),
        ("vllm", "0.11.1", "allenai/Olmo-3-32B-Think", NONE),
        ("vllm", "nightly", "allenai/Olmo-3-32B-Think", ("olmo3", "olmo3")),
        ("vllm", "0.20.0", "MiniMaxAI/MiniMax-M3", NONE),
        ("sglang", "0.5.12", "MiniMaxAI/MiniMax-M3", NONE),
        ("vllm", "0.11.0", "Qwen/Qwen2.5-7B-Instruct", ("", "hermes")),
        ("sglang", "0.5.12", "inclusionAI/Ling-3.0-flash", NONE),
        ("sglang", "", "inclusionAI/Ling-3.0-flash", ("ling3", "ling3")),
    ],
)
def test_a_parser_that_a_release_does_not_have_is_left_out(engine, version, model, found):
    assert parsers_of(model, engine, version) == found


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_sglang_takes_each_parser_that_its_release_is_given(version):
    for pattern, _ in FAMILIES:
        found = parsers_of(pattern, "sglang", version)
        flags = {"--reasoning-parser": found.reasoning, "--tool-call-parser": found.tools}
        assert flag_faults("sglang", version, {flag: one for flag, one in flags.items() if one}) == ()
