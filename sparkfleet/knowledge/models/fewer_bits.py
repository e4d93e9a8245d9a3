"""Published checkpoints of a model that take fewer bits than the one at hand, by their names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.engines.launch_recipes import recommended_models
from sparkfleet.knowledge.models.known_models import (
    MODELS,
    checkpoint_if_known,
    without_format,
)
from sparkfleet.knowledge.models.published_checkpoints import CHECKPOINTS, load_published
from sparkfleet.specs.model_name import base_name

SMALLER = 0.8
"""Largest share of the bytes at hand that counts as fewer."""
MAKERS = ("nvidia", "redhatai")
"""Owners, after the model's own, whose requantised checkpoints come first: they test them on vLLM."""

_MACHINE = "-Spark"
"""End of the names of some checkpoints that are made for a Spark."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def checkpoints_with_fewer_bits(checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
    """Published checkpoints of the same model with fewer bytes: those of its own maker and of `MAKERS`, and those that
    NVIDIA's recipes serve; of a format that none of these has, another owner's. Its own maker's come first.
    """
    if checkpoint.gguf is not None:
        return ()
    own = base_name(checkpoint.id)
    owner = own.partition("/")[0].lower()
    order = (owner, *MAKERS)

    def rank(id_: str) -> int:
        maker = id_.partition("/")[0].lower()
        return order.index(maker) if maker in order else len(order) + (id_ not in recommended_models())

    found: dict[str, list[Checkpoint]] = {}
    for id_ in sorted(published_models().get(_model_of(own), ()), key=rank):
        other = checkpoint_if_known(id_)
        if other is not None and other.quantization is not None and _is_smaller(other, checkpoint):
            of_format = found.setdefault(other.quantization.scheme.format, [])
            # A renamed repository is in the list by both of its names, the present one first.
            is_new = all(one.id.partition("/")[0] != id_.partition("/")[0] for one in of_format)
            if not of_format or (is_new and rank(id_) <= len(order)):
                of_format.append(other)
    return tuple(one for of_format in found.values() for one in of_format)


def _is_smaller(other: Checkpoint, checkpoint: Checkpoint) -> bool:
    shapes = [
        (one.hidden_size, one.vocab_size, one.experts, one.moe_layers, one.dense_layers)
        for one in (other, checkpoint)
    ]
    return shapes[0] == shapes[1] and other.bytes_on_disk <= SMALLER * checkpoint.bytes_on_disk


@cache
def published_models() -> Mapping[str, tuple[str, ...]]:
    """Hub ids of the checkpoints that are known, by the name of the model that they are copies of (`without_format`)."""
    found: dict[str, list[str]] = {}
    for id_ in dict.fromkeys(_ids()):
        found.setdefault(_model_of(id_), []).append(id_)
    for id_ in recommended_models():
        of_model = found.get(without_format(id_.removesuffix(_MACHINE)), [id_])
        if id_ not in of_model:
            of_model.append(id_)
    return {name: tuple(ids) for name, ids in found.items()}


def _model_of(id_: str) -> str:
    published = load_published().get(id_.lower())
    return without_format((published.of if published is not None else "") or id_)


def _ids() -> Iterator[str]:
    yield from (one.id for one in CHECKPOINTS.content.checkpoints if _HUB_ID.fullmatch(one.id))
    for known in MODELS.content.models:
        # A renamed repository has its present name last.
        yield from (id_ for id_ in reversed(known.match) if _HUB_ID.fullmatch(id_))
