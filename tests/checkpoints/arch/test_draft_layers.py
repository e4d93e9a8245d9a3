"""Layers that draft, as configs declare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from model_configs import CONFIGS

from sparkfleet.checkpoints.arch.draft_layers import draft_method
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config


@pytest.mark.parametrize(
    ("extra", "stages", "block"),
    [
        ({}, None, None),
        ({"dspark_block_size": 5}, 5, None),
        ({"block_size": 8}, None, None),
        ({"architectures": ["DFlash2DraftModel"], "block_size": 8}, None, 8),
        ({"architectures": ["Qwen3DSparkModel"], "block_size": 7}, None, 7),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"block_size": 16}}, None, 16),
    ],
)
def test_draft_blocks_are_read_from_a_drafters_config(
    extra: Mapping[str, Any], stages: int | None, block: int | None
) -> None:
    found = checkpoint_from_config({**CONFIGS["Qwen/Qwen3-0.6B"], **extra}, id="o/m")
    assert (found.dspark_block, found.draft_block) == (stages, block)


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        ("LlamaForCausalLMEagle3", "eagle3"),
        ("Eagle3Speculator", "eagle3"),
        ("EagleLlamaForCausalLM", ""),
        ("DFlash2DraftModel", "dflash2"),
        ("DFlashDraftModel", "dflash"),
        ("Qwen3DSparkModel", "dspark"),
        ("Gemma4AssistantForCausalLM", "mtp"),
        ("MedusaModel", ""),
        ("DeepseekV4ForCausalLM", None),
        ("Qwen3_5MoeForConditionalGeneration", None),
    ],
)
def test_a_checkpoint_that_only_drafts_is_known_by_its_class(architecture: str, method: str | None) -> None:
    assert draft_method((architecture,)) == method
