"""Reasoning and tool-call parsers by model family, engine and release. Pure.

Without one, a reasoning model's thoughts arrive as the answer, and a request with tools is refused. With a wrong one the
answer is lost (known issue reasoning-parser-swallow), so only families with a published recipe are here. Families whose
calls can be parsed only with a chat template from the engine's examples are left out: DeepSeek V3 to V3.1, Llama 4, Apertus.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from sparkfleet.knowledge.versions import is_within


class Parsers(NamedTuple):
    """Parser names as the engine's options spell them; "" for none."""

    reasoning: str = ""
    tools: str = ""


FAMILIES: tuple[tuple[str, dict[str, Parsers]], ...] = (
    # NVIDIA's playbook for vLLM, agent-ready recipe of Qwen3.6-35B-A3B (2026-06); SGLang's options of 0.5.12 to 0.5.23.
    ("*qwen3.[568]-*", {"vllm": Parsers("qwen3", "qwen3_xml"), "sglang": Parsers("qwen3", "qwen3_coder")}),
    # NVIDIA/local-ai-inference-recipes@dedcf6b, launch lines for one, two and four Sparks (2026-11); V4-Pro as V4-Flash in
    # vllm-project/recipes@8959cf6. SGLang: vavrusa/sparkrun-recipes for two Sparks, and its cookbook's page of the model.
    (
        "*deepseek-v4-*",
        {"vllm": Parsers("deepseek_v4", "deepseek_v4"), "sglang": Parsers("deepseek-v4", "deepseekv4")},
    ),
    ("*gemma-4-*", {"vllm": Parsers("gemma4", "gemma4"), "sglang": Parsers("gemma4", "gemma4")}),
    (
        "*minimax-m3*",
        {"vllm": Parsers("minimax_m3", "minimax_m3"), "sglang": Parsers("minimax-m3", "minimax-m3")},
    ),
    # SGLang: NVIDIA's launch lines of Nemotron 3 Super and 3.5 Lightning (their model cards).
    (
        "*nemotron-3-super*",
        {"vllm": Parsers("nemotron_v3", "qwen3_xml"), "sglang": Parsers("nemotron_3", "qwen3_coder")},
    ),
    (
        "*nemotron-3.5-lightning*",
        {"vllm": Parsers("nemotron_v3", "qwen3_xml"), "sglang": Parsers("nemotron_3", "qwen3_coder")},
    ),
    # Harmony: thoughts and calls are channels of the format itself.
    ("*gpt-oss-*", {"vllm": Parsers("openai_gptoss", "openai"), "sglang": Parsers("gpt-oss", "gpt-oss")}),
    # The published two-Spark recipes of M2.5 and M2.7 keep the thoughts in the answer, as the model expects to read them.
    (
        "*minimax-m2*",
        {
            "vllm": Parsers("minimax_m2_append_think", "minimax_m2"),
            "sglang": Parsers("minimax-append-think", "minimax-m2"),
        },
    ),
    # vLLM's documentation of tool calling and of reasoning outputs, and vllm-project/recipes@8959cf6 (2026-08); SGLang's of
    # its tool and reasoning parsers. Instruct and base models have no reasoning parser: without a closing tag some releases
    # take the whole answer for a thought.
    ("*qwen3-coder-*", {"vllm": Parsers("", "qwen3_xml"), "sglang": Parsers("", "qwen3_coder")}),
    (
        "*qwen3-next-*-thinking*",
        {"vllm": Parsers("deepseek_r1", "hermes"), "sglang": Parsers("qwen3-thinking", "qwen")},
    ),
    ("*qwen3-next-*", {"vllm": Parsers("", "hermes"), "sglang": Parsers("", "qwen")}),
    # They always think, and their templates open the thought. vLLM's: the source of reasoning-parser-swallow; SGLang's:
    # https://docs.sglang.io/docs/advanced_features/separate_reasoning (2026).
    (
        "*qwen3-[0-9]*-thinking-2507*",
        {"vllm": Parsers("deepseek_r1", "hermes"), "sglang": Parsers("qwen3-thinking", "qwen")},
    ),
    ("*qwen3-[0-9]*-2507*", {"vllm": Parsers("", "hermes"), "sglang": Parsers("", "qwen")}),
    ("*qwen3-[0-9]*-base*", {}),
    ("*qwen3-[0-9]*", {"vllm": Parsers("qwen3", "hermes"), "sglang": Parsers("qwen3", "qwen")}),
    ("*qwen3-vl-*", {"sglang": Parsers("", "qwen")}),
    ("*qwen2.5-[0-9]*", {"vllm": Parsers("", "hermes"), "sglang": Parsers("", "qwen25")}),
    ("*qwen2.5-coder-*", {"vllm": Parsers("", "hermes"), "sglang": Parsers("", "qwen25")}),
    ("*qwq-32b*", {"vllm": Parsers("deepseek_r1", "hermes"), "sglang": Parsers("", "qwen25")}),
    ("*ministral-3-*-reasoning-*", {"vllm": Parsers("mistral", "mistral")}),
    ("*mistral-small-4-*", {"vllm": Parsers("mistral", "mistral")}),
    ("*mistral-medium-3.5-*", {"vllm": Parsers("mistral", "mistral")}),
    ("*devstral-*", {"vllm": Parsers("", "mistral"), "sglang": Parsers("", "mistral")}),
    ("*ministral-*-instruct-*", {"vllm": Parsers("", "mistral"), "sglang": Parsers("", "mistral")}),
    ("*mistral-nemo-instruct-*", {"vllm": Parsers("", "mistral"), "sglang": Parsers("", "mistral")}),
    ("*mistral-small-3*-instruct-*", {"vllm": Parsers("", "mistral"), "sglang": Parsers("", "mistral")}),
    ("*mistral-large-*instruct-*", {"vllm": Parsers("", "mistral"), "sglang": Parsers("", "mistral")}),
    ("*granite-4*-base*", {}),
    ("*granite-4*", {"vllm": Parsers("", "granite4")}),
    (
        "*hunyuan-a13b-instruct*",
        {"vllm": Parsers("hunyuan_a13b", "hunyuan_a13b")},
    ),
    ("*kimi-k2-thinking*", {"vllm": Parsers("kimi_k2", "kimi_k2"), "sglang": Parsers("kimi_k2", "kimi_k2")}),
    ("*kimi-k2.[567]*", {"vllm": Parsers("kimi_k2", "kimi_k2"), "sglang": Parsers("kimi_k2", "kimi_k2")}),
    ("*kimi-k2-instruct*", {"vllm": Parsers("", "kimi_k2"), "sglang": Parsers("", "kimi_k2")}),
    ("*glm-4.[56]*-base*", {}),
    ("*glm-4.[56]*", {"vllm": Parsers("glm45", "glm45"), "sglang": Parsers("glm45", "glm45")}),
    ("*glm-4.7*", {"vllm": Parsers("glm45", "glm47"), "sglang": Parsers("glm45", "glm47")}),
    # GLM-5.3-Flash as in NVIDIA/local-ai-inference-recipes@dedcf6b; both engines have GLM-4.7's parsers for GLM-5.
    ("*glm-5*", {"vllm": Parsers("glm45", "glm47"), "sglang": Parsers("glm45", "glm47")}),
    ("*olmo-3*-think*", {"vllm": Parsers("olmo3", "olmo3")}),
    ("*olmo-3*-instruct*", {"vllm": Parsers("", "olmo3")}),
    ("*seed-oss-*-instruct*", {"vllm": Parsers("", "seed_oss")}),
    ("*ernie-4.5-*-thinking*", {"vllm": Parsers("ernie45", "ernie45")}),
    ("*ling-3.0-*", {"vllm": Parsers("ling3", "ling3"), "sglang": Parsers("ling3", "ling3")}),
    ("*mimo-v2-flash*", {"vllm": Parsers("qwen3", "qwen3_xml")}),
    # SGLang 0.5.23 names parsers of both kinds after these families.
    ("*mimo-v2.5*", {"vllm": Parsers("mimo", "mimo"), "sglang": Parsers("mimo", "mimo")}),
    # Launch lines of Spark owners for Nano, Puzzle and Cascade (2026-07); vLLM's page of its Nemotron V3 parser.
    (
        "*nemotron-3-ultra*",
        {"vllm": Parsers("nemotron_v3", "qwen3_coder"), "sglang": Parsers("nemotron_3", "qwen3_coder")},
    ),
    (
        "*nemotron-3-nano-*",
        {"vllm": Parsers("nemotron_v3", "qwen3_coder"), "sglang": Parsers("nemotron_3", "qwen3_coder")},
    ),
    ("*nemotron-labs-3-puzzle-*", {"vllm": Parsers("nemotron_v3", "qwen3_coder")}),
    ("*nemotron-cascade-2-*", {"vllm": Parsers("nemotron_v3", "qwen3_coder")}),
    (
        "*laguna-*",
        {"vllm": Parsers("poolside_v1", "poolside_v1"), "sglang": Parsers("poolside_v1", "poolside_v1")},
    ),
    ("*step-3.[57]-flash*", {"vllm": Parsers("step3p5", "step3p5"), "sglang": Parsers("step3p5", "step3p5")}),
    ("*/hy3*", {"vllm": Parsers("hy_v3", "hy_v3")}),
    # SGLang: MiaAI-Lab's launch line for two Sparks.
    ("*inkling*", {"vllm": Parsers("inkling", "inkling"), "sglang": Parsers("inkling", "inkling")}),
    (
        "*muse-glimmer-*",
        {"vllm": Parsers("muse_glimmer", "muse_glimmer"), "sglang": Parsers("muse", "muse")},
    ),
    # Their chat templates describe the tools, and the calls are JSON.
    ("*/llama-3.[123]-*-instruct*", {"vllm": Parsers("", "llama3_json"), "sglang": Parsers("", "llama3")}),
    ("*/meta-llama-3.1-*-instruct*", {"vllm": Parsers("", "llama3_json"), "sglang": Parsers("", "llama3")}),
)
"""A pattern of names in lower case, the first that fits, and the parsers of its family by engine."""

_SINCE: dict[str, dict[str, str]] = {
    "vllm": {
        "deepseek_v4": "0.20",
        "ernie45": "0.12",
        "gemma4": "0.19",
        "glm47": "0.14",
        "granite4": "0.20",
        "hy_v3": "0.20",
        "inkling": "0.26",
        "ling3": "0.25",
        "mimo": "0.21",
        "minimax_m3": "0.24",
        "muse_glimmer": "0.27",
        "nemotron_v3": "0.17",
        "olmo3": "0.12",
        "poolside_v1": "0.21",
        "step3p5": "0.16",
    },
    "sglang": dict.fromkeys(
        ("inkling", "ling3", "mimo", "minimax-m3", "muse", "nemotron_3", "poolside_v1", "step3p5"), "0.5.23"
    ),
}
"""The first release that is known to have a parser, if images of older ones are known: by recipes and dates of releases."""


def parsers_of(model: str, engine: str, version: str = "") -> Parsers:
    """The parsers of a checkpoint by its name: a Hub id or a directory. Empty if no recipe is published.

    Args:
        model: its name.
        engine: `vllm`, `sglang` or another, which has none here.
        version: of the engine; a parser that came later is left out, one that cannot be ordered has all.
    """
    name = model.lower()
    for pattern, by_engine in FAMILIES:
        if fnmatchcase(name, pattern):
            found = by_engine.get(engine, Parsers())
            return Parsers(*("" if _lacks(engine, version, one) else one for one in found))
    return Parsers()


def _lacks(engine: str, version: str, parser: str) -> bool:
    since = _SINCE.get(engine, {}).get(parser)
    return since is not None and is_within(version, f"<{since}")
