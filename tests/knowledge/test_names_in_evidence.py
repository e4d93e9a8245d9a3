"""Every checkpoint that is published by name resolves offline, or its refusal names what is missing."""

from __future__ import annotations

import csv
import io

import pytest

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.engines.launch_recipes import RECIPES
from sparkfleet.knowledge.models.known_models import known_checkpoint, quant_in_name

ROWS = list(csv.DictReader(io.StringIO(packaged("measurements/benchmarks.csv"))))
DEPLOYED = ("vllm", "sglang", "trt-llm", "trtllm")
"""Engines that a deployment can have; weights of the others are in files that these do not load."""
NAMES = sorted(
    {row["model"] for row in ROWS if row["engine"] in DEPLOYED}
    | {one.model for one in RECIPES.content.recipes}
)
TRUE_REASONS = (
    "the shapes of its layers are not known",
    "stored as GGUF or MLX",
    "stored as EXL3 or MLX",
    "cannot be planned by its name",
)


def resolved(name: str) -> Checkpoint | FactError | None:
    """The checkpoint, or the refusal; any other exception is a traceback for the user."""
    try:
        return known_checkpoint(name)
    except FactError as error:
        return error


@pytest.mark.parametrize("name", NAMES)
def test_a_published_name_is_a_checkpoint_or_has_a_true_reason(name: str) -> None:
    found = resolved(name)
    assert found is not None, "unknown by name"
    if isinstance(found, Checkpoint):
        assert sum(found.bytes_by_part().values()) > 0
    else:
        assert any(reason in found.what for reason in TRUE_REASONS)
        assert found.do


def test_nearly_all_measurements_are_of_checkpoints_with_known_shapes() -> None:
    """A plan by name needs the shapes. Rows count, not names: what is run most is what is planned most."""

    rows = [row["model"] for row in ROWS if row["engine"] in DEPLOYED]
    assert sum(isinstance(resolved(name), Checkpoint) for name in rows) >= 0.93 * len(rows)


@pytest.mark.parametrize("name", sorted({row["model"] for row in ROWS if row["engine"] not in DEPLOYED}))
def test_names_of_other_engines_never_end_in_a_traceback(name: str) -> None:
    found = resolved(name)
    assert found is None or isinstance(found, Checkpoint) or found.do


@pytest.mark.parametrize("name", ["org/Model-NVFP4-W4A16", "org/Model-W4A16-NVFP4"])
def test_four_bit_weights_with_activations_in_16_bits_are_a_format_of_their_own(name: str) -> None:
    assert quant_in_name(name) == "nvfp4-w4a16"
    assert quant_in_name("org/Model-NVFP4") == "nvfp4"
    found = known_checkpoint("somebody/Qwen3.6-27B-NVFP4-W4A16")
    plain = known_checkpoint("somebody/Qwen3.6-27B-NVFP4")
    assert found is not None
    assert plain is not None
    assert found.quantization is not None
    assert plain.quantization is not None
    assert found.quantization.scheme.activations == "bf16"
    assert plain.quantization.scheme.activations == "nvfp4"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Phi-4-mini-instruct", 3.84),
        ("Ministral-8B-Instruct-2410", 8.02),
        ("RedHatAI/DeepSeek-Coder-V2-Lite-Instruct-FP8", 15.7),
        ("TechxGenus/Codestral-22B-v0.1-FP8", 22.2),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 14.8),
        ("Qwen/Qwen2.5-72B-Instruct", 72.7),
        ("0xSero/Hy3-299B-NVFP4", 295.0),
        ("XiaomiMiMo/MiMo-V2.6-Flash-RL", 309.0),
    ],
)
def test_shapes_known_by_name_have_the_parameters_of_the_model_card(name: str, billions: float) -> None:
    found = known_checkpoint(name)
    assert found is not None
    assert sum(one.parameters for one in found.weights) / 1e9 == pytest.approx(billions, rel=0.005)
