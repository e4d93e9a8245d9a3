"""Decode context parallelism (DCP): ranks that would keep copies of a KV cache share one instead, split by its tokens. Pure.

context_split_fault    reason why a model's KV cache cannot be shared so
kv_copies              ranks of a split that keep the same KV: the most that can share it
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.checkpoint import Checkpoint


def context_split_fault(checkpoint: Checkpoint, tp: int, dcp: int) -> str:
    """Reason why `dcp` of `tp` ranks cannot share a KV cache; "" if they can.

    The conditions are vLLM's (0.32: config/parallel.py, and verify_with_parallel_config of config/model.py): `tp` is a
    multiple, and heads have as many copies; a latent (MLA) has one on each rank. SGLang's docs have the same.
    """
    if dcp == 1:
        return ""
    if tp % dcp:
        return f"DCP={dcp} does not divide TP={tp}"
    groups = tuple(_kept_whole(checkpoint))
    if not groups:
        return f"DCP={dcp} splits a KV cache that grows with the context, and no layer has one"
    return next((fault for group in groups if (fault := _heads_fault(group, tp, dcp))), "")


def kv_copies(checkpoint: Checkpoint, tp: int) -> int:
    """Ranks of `tp` that keep the same KV and can share it; 1 if no rank has a copy of another's."""
    return max(one for one in range(1, tp + 1) if not context_split_fault(checkpoint, tp, one))


def _kept_whole(checkpoint: Checkpoint) -> Iterator[LayerGroup]:
    """Layers that keep all tokens."""
    for group in checkpoint.layers:
        if group.layers and group.kv_heads and group.kind in (LayerKind.FULL, LayerKind.MLA):
            yield group


def _heads_fault(group: LayerGroup, tp: int, dcp: int) -> str:
    if group.kind is LayerKind.MLA or group.value_dim == 0:
        return ""
    heads, copies = group.kv_heads, tp // group.kv_heads
    if copies < 2:
        return f"DCP={dcp} shares copies of a KV cache: TP={tp} splits its {heads} heads, and no rank keeps a copy"
    if dcp > copies:
        return f"DCP={dcp} is more than the {copies} copies that TP={tp} makes of {heads} KV heads"
    queries = group.query_heads // heads
    return f"DCP={dcp} does not divide the {queries} query heads of a KV head" if queries % dcp else ""
