"""Choices for the twenty checkpoints that most is published of, on one, two and four Sparks: read by eye when they change.

`SPARKFLEET_GOLDEN=write pytest tests/planner/test_most_run.py` writes the file.
"""

import os
import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
MODELS = (
    "Qwen/Qwen3.6-27B-FP8",
    "nvidia/Qwen3.6-27B-NVFP4",
    "RadixArk/Qwen3.8-27B-NVFP4",
    "Qwen/Qwen3.6-35B-A3B-FP8",
    "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Flash-0731",
    "nvidia/GLM-5.3-Flash-NVFP4",
    "RadixArk/Qwen3.8-Flash-Next-NVFP4",
    "nvidia/Gemma-4-26B-A4B-NVFP4",
    "google/gemma-4-26B-A4B-it",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-30B-A3B-FP8",
    "nvidia/Llama-3.3-70B-Instruct-FP4",
    "lukealonso/MiMo-V2.5-NVFP4",
    "stepfun-ai/Step-3.7-Flash-NVFP4",
    "Intel/Qwen3.5-122B-A10B-int4-AutoRound",
    "Qwen/Qwen3-Coder-Next-FP8",
)


def told(found) -> str:
    """The choice and its reason, numbers of speed masked."""
    if found.refused:
        return f"refused: {found.refused[0].rejected[0].reason}"
    (group, *_) = found.deployments[0].groups
    rung = group.choice
    nodes = len(rung.candidate.shape.nodes)
    shown = f"{nodes} × {rung.candidate.how} ({rung.prediction.verdict}); {rung.reason}"
    published = "published" if rung.published.same else "not published"
    below = " | ".join(one.candidate.how for one in group.own_rungs[1:])
    return re.sub(r"\d+(\.\d+)?(?= tok/s|×| GiB)", "#", f"{shown}; {published}\n        then {below}")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_choices_for_the_most_run_models(sparks, plan, ask, count):
    lines = [
        f"{model}\n    {objective}: {told(plan(sparks(count, switch=count > 2), ask(model, objective=objective)))}"
        for model in MODELS
        for objective in ("interactive", "throughput")
    ]
    file = GOLDEN / f"most-run-{count}.txt"
    text = "\n".join(lines) + "\n"
    if os.environ.get("SPARKFLEET_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), (
        "if the change has a reason: SPARKFLEET_GOLDEN=write pytest tests/planner/test_most_run.py"
    )
