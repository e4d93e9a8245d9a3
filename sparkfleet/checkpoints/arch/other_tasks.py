"""Refuses checkpoints that continue no text: embedding models, rerankers, classifiers, reward models, encoder-decoders,
diffusion models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sparkfleet.checkpoints.io.checkpoint_files import CONTAINER, refused_pipeline
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.licenses import READ_LIMIT, front_value
from sparkfleet.checkpoints.io.safe_io import present, read_start
from sparkfleet.errors import FactError

MEANS = (
    "It makes vectors or scores. Plans, their speeds and the test of a group before it serves are for models that write"
    " text."
)
DO = (
    "Serve it by vLLM's pooling runner with `engine: custom` and its `memory`: deployments/qwen3-embedding.yaml is an"
    " example; `endpoints` opens paths such as /v1/rerank."
)
_ENCODED = (
    "Its decoder reads what an encoder made of the whole input (translation, speech to text). Plans, their speeds and the"
    " test of a group before it serves are for models that continue a text."
)
SENTENCE_FILES = ("modules.json", "config_sentence_transformers.json")
"""Files of sentence-transformers, which serves embedding models and cross-encoders only."""
_POOLING = "1_Pooling"
_TASKS = frozenset(("sentence-similarity", "text-ranking"))
"""Tasks of model cards. `feature-extraction` is not one of them: cards of base models have it, too."""
_CLASSES = re.compile(
    r"\w+For(?:SequenceClassification|TokenClassification|MaskedLM|RewardModel|ProcessRewardModel|TextEncoding)"
    r"|\w*(?:Bert|Roberta|MPNet|Electra|DebertaV2|Gte|GteNew|Bidirectional|Embedding)Model"
    r"|(?:Qwen2|Qwen3|Mistral|Gemma2|Gemma3Text)Model",
    re.ASCII,
)
"""Classes with a head for scores, or with none: a draft's class is none of them."""


def refuse_other_tasks(outer: Config, source: Path) -> None:
    """Raises FactError if a checkpoint continues no text, by its class, its files or its model card.

    Args:
        outer: its config.json.
        source: its directory.
    """
    if outer.has("_diffusers_version"):
        raise refused_pipeline(outer.where, "its _diffusers_version")
    if outer.values.get("is_encoder_decoder") is True:
        named = ", ".join(outer.texts("architectures") or ()) or outer.text("model_type")
        raise FactError(
            f"{outer.where}: cannot be planned, by its is_encoder_decoder ({named}).",
            means=_ENCODED,
            do=f"{CONTAINER}.",
        )
    found = (
        _class_of(outer.texts("architectures") or ()) or _file_in(source) or _task_in(source / "README.md")
    )
    if found:
        raise FactError(f"{outer.where}: cannot be planned, by its {found}.", means=MEANS, do=DO)


def _class_of(architectures: Iterable[str]) -> str:
    return next((f"class {one}" for one in architectures if _CLASSES.fullmatch(one)), "")


def _file_in(source: Path) -> str:
    return next((f"file {name}" for name in (*SENTENCE_FILES, _POOLING) if present(source / name)), "")


def _task_in(card: Path) -> str:
    if not present(card):
        return ""
    task = front_value(read_start(card, READ_LIMIT).decode("utf-8", errors="replace"), "pipeline_tag")
    return f"card's task {task}" if task in _TASKS else ""
