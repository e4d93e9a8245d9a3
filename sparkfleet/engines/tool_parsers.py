"""Reasoning and tool-call parsers by model family and engine. Pure.

Without one, a reasoning model's thoughts arrive as the answer, and a request with tools is refused. With a wrong one the
answer is lost (known issue reasoning-parser-swallow), so only families with a published recipe are here.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Parsers(NamedTuple):
    """Parser names as the engine's options spell them; "" for none."""

    reasoning: str = ""
    tools: str = ""


_FAMILIES: tuple[tuple[str, dict[str, Parsers]], ...] = (
    # NVIDIA's playbook for vLLM, agent-ready recipe of Qwen3.6-35B-A3B (2026-06); SGLang's options of 0.5.12 to 0.5.23.
    ("*qwen3.[568]-*", {"vllm": Parsers("qwen3", "qwen3_xml"), "sglang": Parsers("qwen3", "qwen3_coder")}),
    # NVIDIA/local-ai-inference-recipes@dedcf6b, launch lines for one, two and four Sparks (2026-11).
    ("*deepseek-v4-flash*", {"vllm": Parsers("deepseek_v4", "deepseek_v4")}),
    ("*gemma-4-*", {"vllm": Parsers("gemma4", "gemma4")}),
    ("*minimax-m3*", {"vllm": Parsers("minimax_m3", "minimax_m3")}),
    ("*nemotron-3-super*", {"vllm": Parsers("nemotron_v3", "qwen3_xml")}),
    ("*nemotron-3.5-lightning*", {"vllm": Parsers("nemotron_v3", "qwen3_xml")}),
    ("*glm-5.3-flash*", {"vllm": Parsers("glm45", "glm47")}),
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
)


def parsers_of(model: str, engine: str) -> Parsers:
    """The parsers of a checkpoint by its name: a Hub id or a directory. Empty if no recipe is published."""
    name = model.lower()
    for pattern, by_engine in _FAMILIES:
        if fnmatchcase(name, pattern):
            return by_engine.get(engine, Parsers())
    return Parsers()
