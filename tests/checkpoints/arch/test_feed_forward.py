"""Feed-forwards as configs declare them."""

from __future__ import annotations

import pytest
from model_configs import FAMILIES

from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError


@pytest.mark.parametrize(("topk", "complaint"), [([8, 4], "moe_topk"), ([], "moe_topk")])
def test_experts_that_differ_between_layers_are_an_error(topk: list[int], complaint: str) -> None:
    config = {**FAMILIES["hunyuan_v1_moe"]["config"], "moe_topk": topk}
    with pytest.raises(FactError, match=complaint):
        checkpoint_from_config(config, id="x")


@pytest.mark.parametrize(
    ("family", "changes", "widths"),
    [
        ("qwen2", {"intermediate_size": 9728}, (0, 0, (9728,))),
        (
            "qwen2_moe",
            {"moe_intermediate_size": 768, "shared_expert_intermediate_size": 2048},
            (768, 2048, ()),
        ),
        (
            "deepseek_v2",
            {
                "moe_intermediate_size": 1408,
                "n_shared_experts": 2,
                "intermediate_size": 10944,
                "first_k_dense_replace": 1,
            },
            (1408, 2816, (10944,)),
        ),
    ],
)
def test_the_widths_of_its_feed_forwards(
    family: str, changes: dict[str, int], widths: tuple[int, int, tuple[int, ...]]
) -> None:
    found = checkpoint_from_config({**FAMILIES[family]["config"], **changes}, id="x").widths
    assert found is not None
    assert (found.routed, found.shared, found.dense) == widths
