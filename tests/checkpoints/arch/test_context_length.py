from __future__ import annotations

import pytest

from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 2048),
        ({"rope_scaling": None}, 2048),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 4096),
        ({"max_position_embeddings": 32_768, "rope_scaling": YARN}, 131_072),
        ({"max_position_embeddings": 131_072, "rope_scaling": YARN}, 131_072),
        (
            {
                "max_position_embeddings": 131_072,
                "rope_scaling": {**YARN, "rope_type": "llama3", "factor": 8},
            },
            131_072,
        ),
        (
            {"max_position_embeddings": 131_072, "rope_parameters": {"rope_type": "longrope", "factor": 32}},
            131_072,
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8},
                    "sliding_attention": {},
                }
            },
            16_384,
        ),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8}}, 2048),
        ({"max_position_embeddings": None, "model_max_length": 1 << 20}, 1 << 20),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_longest_context(
    llama: dict[str, object], change: dict[str, object], expected: int | None
) -> None:
    assert checkpoint_from_config({**llama, **change}, id="x").max_positions == expected


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": "4"},
        {"type": "linear", "factor": float("nan")},
        {"type": "linear", "factor": float("inf")},
        {"type": "linear", "factor": -1},
        {"type": 3, "factor": 4},
        {"type": "yarn", "factor": 4, "original_max_position_embeddings": 0},
        "yarn",
    ],
)
def test_invalid_scaling_is_an_error(llama: dict[str, object], scaling: object) -> None:
    with pytest.raises(FactError, match="expected"):
        checkpoint_from_config({**llama, "rope_scaling": scaling}, id="x")
