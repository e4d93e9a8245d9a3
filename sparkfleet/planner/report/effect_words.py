"""Words for the keys of fitted effects, for people: `engine=vllm` becomes "vLLM, all models"."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.knowledge.engines.engine_flags import ENGINE_LABELS

FAMILY = "this family"
"""Models with this model's shapes; the row of the family alone has their name."""


def effect_words(key: str) -> str:
    """Words for a key of `perf/latency/factor_keys.py`; the key itself if it is of no known kind."""
    kind, _, values = key.partition("=")
    write = _WORDS.get(kind)
    return key if write is None else write(values)


def _engine(name: str) -> str:
    return ENGINE_LABELS.get(name, name)


def _format(klass: str) -> str:
    return klass.upper()


def _many(count: str, what: str) -> str:
    return f"1 {what} at once" if count == "1" else f"{count} {what}s at once"


def _family_format(values: str) -> str:
    _, _, klass = values.partition("+")
    return f"{FAMILY} in {_format(klass)}"


def _family_format_engine(values: str) -> str:
    rest, _, engine = values.rpartition("+")  # a format may have a + itself
    return f"{_family_format(rest)} on {_engine(engine)}"


def _release(values: str) -> str:
    engine, _, release = values.partition("+")
    return f"{_engine(engine)} {release or 'of an unknown release'}, all models"


def _release_family(values: str) -> str:
    engine, release, _, klass = values.split("+", 3)
    return f"{FAMILY} in {_format(klass)} on {_engine(engine)} {release}".rstrip()


def _engine_kind(values: str) -> str:
    engine, kind, *klass = values.split("+", 2)
    return f"models of its kind ({kind}){f' in {_format(klass[0])}' if klass else ''} on {_engine(engine)}"


def _tp_engine(values: str) -> str:
    tp, _, engine = values.partition("+")
    return f"{_engine(engine)} with TP={tp}"


def _tp_mixing(values: str) -> str:
    tp, _, mixing = values.partition("+")
    return f"{'mixtures of experts' if mixing == 'moe' else 'dense models'} with TP={tp}"


def _spec_method_engine(values: str) -> str:
    method, _, engine = values.partition("+")
    return f"{method} on {_engine(engine)}"


def _crowd(values: str) -> str:
    count, _, engine = values.partition(
        "+"
    )  # a key of a decode step has an engine, one of a prefill has none
    return f"{_many(count, 'request')} on {_engine(engine)}" if engine else _many(count, "prompt")


def _crowd_engine(values: str) -> str:
    count, _, engine = values.partition("+")
    return f"{_many(count, 'prompt')} on {_engine(engine)}"


def _crowd_kind(values: str) -> str:
    count, engine, kind = values.split("+", 2)
    return f"{_many(count, 'request')}, models of its kind ({kind}) on {_engine(engine)}"


def _spec_method_crowd(values: str) -> str:
    method, _, count = values.rpartition("+")
    return f"{method}, {_many(count, 'request')}"


_WORDS: dict[str, Callable[[str], str]] = {
    "engine": lambda values: f"{_engine(values)}, all models",
    "family": lambda values: f"{FAMILY}: {values}",
    "family+format": _family_format,
    "family+format+engine": _family_format_engine,
    "tp+family": lambda values: f"{FAMILY} with TP={values.partition('+')[0]}",
    "release": _release,
    "release+family": _release_family,
    "engine+kind": _engine_kind,
    "tp+engine": _tp_engine,
    "tp+mixing": _tp_mixing,
    "spec+family": lambda _: f"{FAMILY} with drafts",
    "spec+method+engine": _spec_method_engine,
    "prompt": lambda values: f"prompts of about {values} tokens",
    "crowd": _crowd,
    "crowd+engine": _crowd_engine,
    "crowd+kind": _crowd_kind,
    "crowd+family": lambda values: f"{_many(values.partition('+')[0], 'request')}, {FAMILY}",
    "spec+crowd": lambda values: f"drafts, {_many(values, 'request')}",
    "spec+method+crowd": _spec_method_crowd,
}
