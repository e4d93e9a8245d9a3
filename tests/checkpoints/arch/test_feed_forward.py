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
