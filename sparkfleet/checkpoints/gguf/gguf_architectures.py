"""Differences between the architectures of llama.cpp b11434, as its memory depends on them (`src/models/*.cpp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class SlidingRule(NamedTuple):
    """Sliding layers of an architecture if its file does not list them."""

    period: int
    """Every n-th layer attends to all tokens."""
    full_first: bool = False
    """The first layer of each period does, not the last."""
    window: int = 0
    """Tokens, if the file has no window; 0: then no layer slides."""
    always: int = 0
    """Tokens in place of whatever window the file has; a window of 0 in it still switches sliding off."""
    layers: int = 0
    """Only models with this number of layers slide; 0: all."""


SLIDING: Mapping[str, SlidingRule] = {
    "afmoe": SlidingRule(4),
    "cohere2": SlidingRule(4),
    "cohere2moe": SlidingRule(4, full_first=True),
    "exaone-moe": SlidingRule(4, window=128),
    "exaone4": SlidingRule(4, window=4096, layers=64),
    "gemma2": SlidingRule(2, window=4096),
    "gemma3": SlidingRule(6),
    "gemma3n": SlidingRule(5),
    "gpt-oss": SlidingRule(2),
    "laguna": SlidingRule(4, full_first=True),
    "llama4": SlidingRule(4, window=8192, always=8192),
    "mellum": SlidingRule(4),
    "muse-glimmer": SlidingRule(4),
    "olmo2": SlidingRule(4),
    "plamo3": SlidingRule(8),
    "smallthinker": SlidingRule(4, full_first=True, always=4096),
}
"""`load_swa_pattern` of each."""
SLIDING_LISTED = frozenset(
    {"dflash", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}
)
"""Architectures whose files list the sliding layers. In all other ones no layer slides, whatever window the file has."""

RECURRENT_BY_INTERVAL = frozenset({"qwen35", "qwen35moe", "qwen3next", "qwen4exp"})
INTERVAL = 4
RECURRENT_WITHOUT_HEADS = frozenset(
    {
        "bailingmoe3",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "plamo2",
    }
)
"""A layer without KV heads keeps a state."""
NEMOTRON_H = frozenset({"nemotron_h", "nemotron_h_moe"})
"""The same, unless it has a feed-forward, which then is all of it."""
RECURRENT_ALWAYS = frozenset({"mamba", "mamba2"})
RECURRENT_BESIDE = frozenset({"falcon-h1"})
"""Every layer attends and keeps a state."""
STATEFUL = RECURRENT_BY_INTERVAL | RECURRENT_WITHOUT_HEADS | NEMOTRON_H | RECURRENT_ALWAYS | RECURRENT_BESIDE
SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
KIMI_DELTA = frozenset({"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"})

LATENT = frozenset(
    {
        "bailingmoe3",
        "deepseek2",
        "deepseek32",
        "glm-dsa",
        "glm5-next",
        "hy_v4",
        "kimi-k3",
        "kimi-linear",
        "mistral4",
    }
)
"""Architectures that cache one latent per token, if the file has its sizes; older files have full keys and values."""
INDEXED: Mapping[str, int] = {
    "deepseek32": 1,
    "glm-dsa": 1,
    "glm5-next": 3,
    "hy_v4": 1,
    "minimax-m3": 1,
    "qwen4exp": 2,
}
"""Rows that the index of sparse attention keeps per token: of pooled ones the key, a gate and the pooled key."""

SHARED_KV_FROM = {"gemma3n": 20}
"""The first layer that reads an earlier one's cache, if the file does not declare how many do."""

DRAFTS: Mapping[str, str] = {"dflash": "DFlash", "eagle3": "Eagle3", "gemma4-assistant": "Gemma4Assistant"}
"""Architectures that only draft tokens, each with a class by which drafts in other formats are known. DFlash2 and DSpark
have that of DFlash."""
NO_TEXT = frozenset(
    {
        "bert",
        "chameleon",
        "clef",
        "clip",
        "dream",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llada",
        "llada-moe",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "pockettts",
        "qwen3tts",
        "rnd1",
        "t5",
        "t5encoder",
        "wavtokenizer-dec",
    }
)
"""Architectures that do not write text token by token: encoders, diffusion, sound."""
OWN_CACHES = frozenset(
    {
        "arwkv7",
        "deepseek4",
        "dots3note",
        "graniteswitch",
        "minimax-01",
        "nanbeige",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
    }
)
"""Architectures with caches of their own in llama.cpp (`llama_model::create_memory`), whose sizes are not known here."""

MODEL_TYPES: Mapping[str, str] = {
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "bailingmoe3": "bailing_hybrid",
    "command-r": "cohere",
    "cohere2moe": "cohere2_moe",
    "deci": "nemotron-nas",
    "deepseek2": "deepseek_v3",
    "deepseek32": "deepseek_v32",
    "ernie4_5-moe": "ernie4_5_moe",
    "glm-dsa": "glm_moe_dsa",
    "glm4moe": "glm4_moe",
    "granitehybrid": "granitemoehybrid",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "lfm2moe": "lfm2_moe",
    "mimo2": "mimo_v2",
    "nemotron_h_moe": "nemotron_h",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_5_vl",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3_vl",
    "qwen3vlmoe": "qwen3_vl_moe",
    "qwen4exp": "qwen4_exp",
    "step35": "step3p5",
}
"""Names of the same models in transformers; of all others with `-` as `_`."""


def model_type_of(architecture: str) -> str:
    """The `model_type` of transformers for an architecture of llama.cpp."""
    return MODEL_TYPES.get(architecture, architecture.replace("-", "_"))
