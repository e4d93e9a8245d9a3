"""Ranks that may share one KV cache; `tests/engines/test_real_parsers.py` holds the conditions against vLLM's own."""

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.context_split import context_split_fault, kv_copies

GLM = "zai-org/GLM-5.2-FP8"  # latents
HYBRID = "Qwen/Qwen3.6-35B-A3B-FP8"  # 16 query heads, 2 KV heads
GQA = "Qwen/Qwen3-30B-A3B-FP8"  # 32 query heads, 4 KV heads
SLIDING = "openai/gpt-oss-120b"  # 64 and 8


@pytest.mark.parametrize(
    ("model", "tp", "dcp", "fault"),
    [
        (GLM, 8, 1, ""),
        (GLM, 8, 8, ""),
        (GLM, 4, 2, ""),
        (GLM, 4, 3, "DCP=3 does not divide TP=4"),
        (GLM, 1, 2, "DCP=2 does not divide TP=1"),
        (HYBRID, 4, 2, ""),
        (HYBRID, 4, 4, "DCP=4 is more than the 2 copies that TP=4 makes of 2 KV heads"),
        (GQA, 4, 2, "DCP=2 shares copies of a KV cache: TP=4 splits its 4 heads, and no rank keeps a copy"),
        (GQA, 8, 2, ""),
    ],
)
def test_ranks_share_what_each_would_keep(model, tp, dcp, fault):
    assert context_split_fault(known_checkpoint(model), tp, dcp) == fault


@pytest.mark.parametrize(
    ("model", "copies"),
    [(GLM, (1, 2, 4, 8)), (HYBRID, (1, 1, 2, 4)), (GQA, (1, 1, 1, 2)), (SLIDING, (1, 1, 1, 1))],
)
def test_the_most_ranks_that_can_share_one(model, copies):
    checkpoint = known_checkpoint(model)
    assert tuple(kv_copies(checkpoint, tp) for tp in (1, 2, 4, 8)) == copies


def test_query_heads_of_a_kv_head_are_divided():
    checkpoint = known_checkpoint(HYBRID)
    three = tuple(
        group.model_copy(update={"query_heads": 3 * group.kv_heads}) if group.kv_heads else group
        for group in checkpoint.layers
    )
    fault = context_split_fault(checkpoint.model_copy(update={"layers": three}), 4, 2)
    assert fault == "DCP=2 does not divide the 3 query heads of a KV head"


def test_without_a_cache_that_grows_there_is_nothing_to_share():
    checkpoint = known_checkpoint(HYBRID)
    linear = tuple(group for group in checkpoint.layers if not group.kv_heads)
    fault = context_split_fault(checkpoint.model_copy(update={"layers": linear}), 4, 2)
    assert fault == "DCP=2 splits a KV cache that grows with the context, and no layer has one"
