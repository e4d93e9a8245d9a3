"""Which fitted numbers apply to a setup: keys from the general to the particular.

`scripts/fit` and the predictions use the same functions, so that what was fitted is what is applied. Effects of a
particular key are shrunk towards zero when few measurements carry them: the general ones then speak.
"""

from __future__ import annotations

from sparkfleet.knowledge.physics import physics
from sparkfleet.planning.speed import Setup

ENGINE_GROUPS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "ollama": "llama.cpp", "ds4": "ds4"}
"""Engines that are not listed behave as vLLM until something is measured."""


def engine_group(setup: Setup) -> str:
    """The engine whose coefficients apply."""
    return ENGINE_GROUPS.get(setup.engine, "vllm")


def decode_coefficient(setup: Setup, term: str) -> str:
    """Key of the coefficient of one term of a decode step."""
    engine = engine_group(setup)
    if term in ("weights", "experts"):
        return f"{term}/{engine}/{physics().formats[setup.format].klass}{'/' + setup.kernel if setup.kernel else ''}"
    if term in ("launch", "routing", "linear", "step"):
        return f"{term}/{engine}{'/eager' if setup.eager else ''}"
    return f"{term}/{engine}" if term in ("sequence", "kv", "state", "compute") else term


def prefill_coefficient(setup: Setup, term: str) -> str:
    """Key of the coefficient of one term of a prefill."""
    engine = engine_group(setup)
    if term == "compute":
        mixing = "moe" if setup.arch.moe else "dense"
        kernel = "/" + setup.kernel if setup.kernel else ""
        return f"compute/{engine}/{physics().formats[setup.format].klass}/{mixing}{kernel}"
    if term == "attention":
        return f"attention/{engine}/{setup.arch.kind.rpartition('-')[2]}"
    return f"{term}/{engine}"


def crowd(batch: float) -> str:
    """Requests at once, in the steps in which engines change their kernels."""
    for most in (1, 3, 10, 40):
        if batch <= most:
            return f"<={most}"
    return ">40"


def _setup_keys(setup: Setup) -> list[str]:
    engine, family, tp = setup.engine, setup.arch.family, setup.tp
    klass = physics().formats[setup.format].klass
    return [
        f"engine={engine}",
        f"family={family}",
        f"family+format={family}+{klass}",
        f"family+format+engine={family}+{klass}+{engine}",
        f"tp={tp}",
        f"tp+engine={tp}+{engine}",
        f"tp+family={tp}+{family}",
        f"release={engine}+{setup.release}",
        f"release+family={engine}+{setup.release}+{family}+{klass}",
        f"eager={setup.eager}",
    ]


def decode_keys(setup: Setup, batch: float) -> tuple[str, ...]:
    """Effects on the time of a decode step."""
    engine, family, kind = setup.engine, setup.arch.family, setup.arch.kind
    klass, many = physics().formats[setup.format].klass, crowd(batch)
    keys = [
        *_setup_keys(setup),
        f"engine+kind={engine}+{kind}+{klass}",
        f"kernel={setup.kernel}+{klass}",
        f"crowd={many}+{engine}",
        f"crowd+kind={many}+{engine}+{kind}",
        f"crowd+family={many}+{family}",
    ]
    if setup.method != "none":
        keys += [
            f"spec+crowd={many}",
            f"spec+method+crowd={setup.method}+{many}",
            f"spec+family+engine={family}+{engine}",
            f"spec+method+engine={setup.method}+{engine}",
        ]
    return tuple(keys)


def prefill_keys(setup: Setup, prompt: int, batch: float) -> tuple[str, ...]:
    """Effects on the time of a prefill."""
    size = "<=300" if prompt <= 300 else "<=1100" if prompt <= 1100 else ">1100"
    many = "1" if batch <= 1 else "<=5" if batch <= 5 else ">5"
    return (
        *_setup_keys(setup),
        f"engine+kind={setup.engine}+{setup.arch.kind}",
        f"prompt={size}",
        f"crowd={many}",
        f"crowd+engine={many}+{setup.engine}",
    )
