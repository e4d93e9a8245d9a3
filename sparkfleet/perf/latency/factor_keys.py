"""Keys of the fitted factors that apply to a setup, from the general to the particular.

`scripts/fit` and the predictions use the same functions, so that what was fitted is what is applied. Effects of a
particular key are shrunk towards zero when few measurements carry them: the general ones then speak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.published.factors import Quantity
from sparkfleet.perf.latency.roofline_terms import SpeedConfig

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
        mixing = "moe" if setup.arch.moe else "dense"
        kernel = "/" + setup.kernel if setup.kernel else ""
        return f"compute/{engine}/{physics().formats[setup.format].klass}/{mixing}{kernel}"
    if term == "attention":
        return f"attention/{engine}/{setup.arch.kind.rpartition('-')[2]}"
    if term == "transfer" and engine != "ds4":  # NCCL's collectives, whatever engine calls them
        return term
    return f"{term}/{engine}"


def batch_bucket(batch: float) -> str:
    """Requests at once, in the steps in which engines change their kernels."""
    for most in (1, 3, 10, 40):
        if batch <= most:
            return f"<={most}"
    return ">40"


def _setup_keys(setup: SpeedConfig) -> list[str]:
    engine, family, tp = setup.engine, setup.arch.family, setup.tp
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
        f"engine+kind={setup.engine}+{setup.arch.kind}+{klass}",
        f"tp+engine={setup.tp}+{setup.engine}",
    ]
    if setup.method != "none":
        keys.append(f"spec+family={setup.arch.family}")
        keys.append(f"spec+method+engine={setup.method}+{setup.engine}")
    return keys


def _prefill_setup_keys(setup: SpeedConfig) -> list[str]:
    mixing = "moe" if setup.arch.moe else "dense"
    return [
        *_setup_keys(setup),
        f"tp+mixing={setup.tp}+{mixing}",
        f"engine+kind={setup.engine}+{setup.arch.kind}",
    ]


SETUP_KEYS: Mapping[Quantity, Callable[[SpeedConfig], list[str]]] = {
    "decode": _decode_setup_keys,
    "prefill": _prefill_setup_keys,
}
"""Effects that depend on the setup alone."""


def decode_load_keys(setup: SpeedConfig, batch: float) -> list[str]:
    """Effects on a decode step that depend on how many decode together."""
    many, engine = batch_bucket(batch), setup.engine
    keys = [
        f"crowd={many}+{engine}",
        f"crowd+kind={many}+{engine}+{setup.arch.kind}",
        f"crowd+family={many}+{setup.arch.family}",
    ]
    if setup.method != "none":
        keys += [f"spec+crowd={many}", f"spec+method+crowd={setup.method}+{many}"]
    return keys


def prefill_load_keys(setup: SpeedConfig, prompt: int, batch: float) -> list[str]:
    """Effects on a prefill that depend on the prompts and on how many come together."""
    size = "<=300" if prompt <= 300 else "<=1100" if prompt <= 1100 else ">1100"
    many = "1" if batch <= 1 else "<=5" if batch <= 5 else ">5"
    return [f"prompt={size}", f"crowd={many}", f"crowd+engine={many}+{setup.engine}"]


def decode_keys(setup: SpeedConfig, batch: float) -> tuple[str, ...]:
    """Effects on the time of a decode step."""
    return (*_decode_setup_keys(setup), *decode_load_keys(setup, batch))


def prefill_keys(setup: SpeedConfig, prompt: int, batch: float) -> tuple[str, ...]:
    """Effects on the time of a prefill."""
    return (*_prefill_setup_keys(setup), *prefill_load_keys(setup, prompt, batch))
