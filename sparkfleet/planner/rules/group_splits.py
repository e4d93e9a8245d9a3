"""Checks if tensor parallelism leaves whole columns, and whole groups of integer weights that share one scale. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.planner.types.plan import GroupShape

VOCAB_PAD = 64
"""vLLM and SGLang fill a vocabulary up to a multiple of it before they split it (`vocab_parallel_embedding.py`)."""


class _Group(NamedTuple):
    """Inputs of a matrix that share a scale."""

    size: int
    is_known: bool
    """False: assumed from a name, or the config lists parts that are not quantised by patterns that cannot be read."""


def divides_widths(checkpoint: Checkpoint, shape: GroupShape) -> bool | None:
    """True if each rank has as many columns of feed-forwards and rows of the vocabulary; None if it is not known."""
    widths = checkpoint.widths
    filled = -(-checkpoint.vocab_size // VOCAB_PAD) * VOCAB_PAD
    if filled % shape.tp:
        return False
    if widths is None:
        return None
    split = max(1, shape.tp // shape.ep)
    return not (widths.routed % split or any(width % shape.tp for width in (*widths.dense, widths.shared)))


def divides_groups(checkpoint: Checkpoint, shape: GroupShape) -> bool | None:
    """True if each rank has whole groups of all that is no routed expert; None if it is not known.

    Matrices that follow a split one are split by their inputs, along which groups are: the output projection of attention,
    and the last one of a feed-forward.
    """
    groups = {part: _group(checkpoint, part) for part in (Part.ATTENTION, Part.MLP, Part.SHARED_EXPERTS)}
    if not any(groups.values()):
        return True
    if checkpoint.widths is None and (groups[Part.MLP] or groups[Part.SHARED_EXPERTS]):
        return None
    uneven = [
        group
        for part, inputs in _inputs(checkpoint)
        if (group := groups[part]) is not None and inputs % (shape.tp * group.size)
    ]
    return not uneven if all(group.is_known for group in uneven) else None


def divides_expert_groups(checkpoint: Checkpoint, shape: GroupShape) -> bool | None:
    """The same for routed experts; with expert parallelism over all ranks of TP each is whole."""
    group = _group(checkpoint, Part.EXPERTS)
    split = max(1, shape.tp // shape.ep)
    if group is None:
        return True
    if checkpoint.widths is None or not checkpoint.widths.routed:
        return None
    if checkpoint.widths.routed % (split * group.size) == 0:
        return True
    return False if group.is_known else None


def _inputs(checkpoint: Checkpoint) -> Iterator[tuple[Part, int]]:
    for layer in checkpoint.layers:
        if layer.value_dim:  # a latent's output projection has inputs of another size
            yield Part.ATTENTION, layer.query_heads * layer.value_dim
    if checkpoint.widths is not None:
        yield from ((Part.MLP, width) for width in checkpoint.widths.dense)
        yield Part.SHARED_EXPERTS, checkpoint.widths.shared


def _group(checkpoint: Checkpoint, part: Part) -> _Group | None:
    """The groups in which a part is stored; None if it has none, or no integers."""
    quantization = checkpoint.quantization
    if quantization is None:
        return None
    found = [
        _Group(cover.scheme.group_size, is_known=not (cover.assumed or quantization.unread))
        for cover in quantization.covers
        if cover.part is part
        and cover.scheme is not None
        and cover.scheme.format.startswith("int")
        and cover.scheme.group_size
    ]
    return max(found, default=None)
