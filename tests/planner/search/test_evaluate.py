"""The published runs beside a candidate, in whole plans: checkpoints known by name."""

from __future__ import annotations

import pytest
from planning_values import choice

DEEPSEEK = "deepseek-ai/DeepSeek-V4-Flash-0731"


def test_an_image_by_name_in_the_same_bits_hides_no_published_rate(sparks, plan, ask):
    """Six sources have its rate for one request. One ran a build of its own, taken only by name, and none was shown."""
    published = choice(plan(sparks(2), ask(DEEPSEEK, engine="vllm"))).published
    assert published.figure is not None
    assert published.figure.is_alike
    assert len(published.figure.sources) > 1
    assert published.alone == published.figure.tps


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_build_that_stores_other_bits_hides_the_rates_of_its_engine(sparks, plan, ask, engine):
    """A source that names only the model may have run that build."""
    published = choice(plan(sparks(1), ask("openai/gpt-oss-120b", engine=engine))).published
    assert published.rows
    assert published.figure is None
