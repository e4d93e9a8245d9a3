"""Shapes in `configs.json`: parameters that follow from them, against the published numbers."""

from __future__ import annotations

import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError
from sparkfleet.knowledge.measurements import architectures, siblings

PUBLISHED = {name: entry for name, entry in architectures().items() if "params_total_b" in entry}
TOTALS_ONLY = {"Qwen/Qwen3-Coder-Next", "XiaomiMiMo/MiMo-V2.5"}
"""Entries without shapes: other entries have them."""
SHAPED = sorted(PUBLISHED.keys() - TOTALS_ONLY)
ROUNDED = 1.0
"""Billions: published active parameters have one or two digits, and some makers count the embedding, some do not."""


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_make_the_published_number_of_parameters(name):
    model = checkpoint_from_config(PUBLISHED[name], id=name, quantization="bf16")
    tower = model.parameters_by_part().get(Part.VISION, 0)
    counted = (model.total_parameters / 1e9, (model.total_parameters - tower) / 1e9)
    assert any(one == pytest.approx(PUBLISHED[name]["params_total_b"], rel=0.03) for one in counted)


@pytest.mark.parametrize("name", [name for name in SHAPED if "params_active_b" in PUBLISHED[name]])
def test_shapes_make_the_published_number_of_active_parameters(name):
    model = checkpoint_from_config(PUBLISHED[name], id=name, quantization="bf16")
    row = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    counted = (model.active_parameters / 1e9, (model.active_parameters + row) / 1e9)
    published = PUBLISHED[name]["params_active_b"]
    assert min(abs(one - published) for one in counted) <= max(ROUNDED, 0.09 * published)


@pytest.mark.parametrize("name", sorted(TOTALS_ONLY))
def test_totals_alone_are_no_shapes(name):
    with pytest.raises(FactError, match="is missing"):
        checkpoint_from_config(PUBLISHED[name], id=name)


def test_siblings_have_shapes():
    assert {shapes for _, shapes in siblings()} <= architectures().keys()
