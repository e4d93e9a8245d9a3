"""Keys of the fitted factors that apply to a setup, from the general to the particular.

`scripts/fit` and the predictions use the same functions, so that what was fitted is what is applied. Effects of a
particular key are shrunk towards zero when few measurements carry them: the general ones then speak. Effects of a load
are known at some loads, and a load between two of them has shares of both: one request more is never a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.published.factors import PATCHED_BUILDS, Quantity
from sparkfleet.perf.latency.step_costs import SpeedConfig

ENGINE_GROUPS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama.cpp": "llama.cpp",
    "ollama": "ollama",
    "ds4": "ds4",
}
"""Engines that are not listed behave as vLLM until something is measured."""

OF_THE_ENGINE = (
    "launch",
    "host",
    "routing",
    "linear",
    "step",
    "sequence",
    "kv",
    "state",
    "compute",
    "verify",
    "drafting",
)
"""Terms of a decode step with a coefficient for each engine; those of weights also depend on format and kernel."""


def engine_group(setup: SpeedConfig) -> str:
    """The engine whose coefficients apply."""
    return ENGINE_GROUPS.get(setup.engine, "vllm")


def decode_coefficient(setup: SpeedConfig, term: str) -> str:
    """Key of the coefficient of one term of a decode step."""
    engine = engine_group(setup)
    if term in ("weights", "experts"):
        return f"{term}/{engine}/{physics().formats[setup.format].klass}{'/' + setup.kernel if setup.kernel else ''}"
    return f"{term}/{engine}" if term in OF_THE_ENGINE else term


def prefill_coefficient(setup: SpeedConfig, term: str) -> str:
    """Key of the coefficient of one term of a prefill."""
    engine = engine_group(setup)
    if term == "compute":
        mixing = "moe" if setup.shape.moe else "dense"
        kernel = "/" + setup.kernel if setup.kernel else ""
        return f"compute/{engine}/{physics().formats[setup.format].klass}/{mixing}{kernel}"
    if term == "attention":
        return f"attention/{engine}/{setup.shape.kind.rpartition('-')[2]}"
    if term == "transfer" and engine != "ds4":  # NCCL's collectives, whatever engine calls them
        return term
    return f"{term}/{engine}"


REQUESTS = (1, 2, 4, 8, 16, 32, 64)
"""Requests that decode together at which effects are known; those between two of them have shares of both."""
PROMPTS_AT_ONCE = (1, 5)
"""The same for prompts that come together."""
PROMPT_TOKENS = (300, 1100, 4000)
"""The same for tokens of a prompt."""


def anchor_shares(value: float, anchors: Sequence[int]) -> dict[int, float]:
    """Anchors next to a value → share of each in what applies there, 0 to 1, in sum 1.

    Linear in the logarithm between two anchors. Below the first and above the last that one alone applies: physical terms
    go on, effects do not.

    Args:
        value: a number of requests, or of tokens.
        anchors: ascending.
    """
    if value <= anchors[0]:
        return {anchors[0]: 1.0}
    for low, high in pairwise(anchors):
        if value < high:
            upper = math.log(value / low, high / low)
            return {low: 1.0 - upper, high: upper} if value > low else {low: 1.0}
    return {anchors[-1]: 1.0}


def _setup_keys(setup: SpeedConfig) -> list[str]:
    engine, family, tp = setup.engine, setup.shape.family, setup.tp
    klass = physics().formats[setup.format].klass
    return [
        f"engine={engine}",
        f"family={family}",
        f"family+format={family}+{klass}",
        f"family+format+engine={family}+{klass}+{engine}",
        f"tp+family={tp}+{family}",
        f"release={engine}+{setup.release}",
        f"release+family={engine}+{setup.release}+{family}+{klass}",
    ]


def _decode_setup_keys(setup: SpeedConfig) -> list[str]:
    """Terms of the ranks' cost; kernels differ in the coefficients of the weights.

    As effects they would be factors: a step that verifies drafts is longer, but its ranks wait no longer for each other.
    """
    klass = physics().formats[setup.format].klass
    keys = [
        *_setup_keys(setup),
        f"engine+kind={setup.engine}+{setup.shape.kind}+{klass}",
        f"tp+engine={setup.tp}+{setup.engine}",
    ]
    if setup.method != "none":
        keys.append(f"spec+family={setup.shape.family}")
        keys.append(f"spec+method+engine={setup.method}+{setup.engine}")
    return keys


def _prefill_setup_keys(setup: SpeedConfig) -> list[str]:
    mixing = "moe" if setup.shape.moe else "dense"
    return [
        *_setup_keys(setup),
        f"tp+mixing={setup.tp}+{mixing}",
        f"engine+kind={setup.engine}+{setup.shape.kind}",
    ]


SETUP_KEYS: Mapping[Quantity, Callable[[SpeedConfig], list[str]]] = {
    "decode": _decode_setup_keys,
    "prefill": _prefill_setup_keys,
}
"""Effects that depend on the setup alone."""


def decode_load_keys(setup: SpeedConfig, batch: float) -> dict[str, float]:
    """Effects on a decode step that depend on how many decode together, each with the share that applies."""
    engine, family = setup.engine, setup.shape.family
    keys: dict[str, float] = {}
    for many, share in anchor_shares(batch, REQUESTS).items():
        keys[f"crowd={many}+{engine}"] = share
        keys[f"crowd+kind={many}+{engine}+{setup.shape.kind}"] = share
        keys[f"crowd+family={many}+{family}"] = share
        if setup.method != "none":
            keys[f"spec+crowd={many}"] = share
            keys[f"spec+method+crowd={setup.method}+{many}"] = share
    return keys


def prefill_load_keys(setup: SpeedConfig, prompt: int, batch: float) -> dict[str, float]:
    """Effects on a prefill that depend on the prompts and on how many come together, each with the share that applies."""
    keys = {f"prompt={size}": share for size, share in anchor_shares(prompt, PROMPT_TOKENS).items()}
    for many, share in anchor_shares(batch, PROMPTS_AT_ONCE).items():
        keys[f"crowd={many}"] = share
        keys[f"crowd+engine={many}+{setup.engine}"] = share
    return keys


def decode_keys(setup: SpeedConfig, batch: float) -> dict[str, float]:
    """Effects on the time of a decode step, each with the share that applies: 1 for those of the setup."""
    return dict.fromkeys(_decode_setup_keys(setup), 1.0) | decode_load_keys(setup, batch)


def prefill_keys(setup: SpeedConfig, prompt: int, batch: float) -> dict[str, float]:
    """Effects on the time of a prefill, each with the share that applies: 1 for those of the setup."""
    return dict.fromkeys(_prefill_setup_keys(setup), 1.0) | prefill_load_keys(setup, prompt, batch)


def release_of(image: str, version: str) -> str:
    """The engine's release as factors name it: `0.27`, or the name of a patched build."""
    named = next((stack for stack in PATCHED_BUILDS if stack in image.lower()), "")
    if named:
        return named
    found = re.match(r"v?(\d+\.\d+)", version)
    return found[1] if found else ""
