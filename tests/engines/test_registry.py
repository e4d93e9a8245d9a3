import pytest

from sparkfleet.engines.registry import ENGINES, engine_by_name
from sparkfleet.errors import EngineError


def test_every_engine_that_a_deployment_may_name():
    assert sorted(ENGINES) == ["custom", "sglang", "trtllm", "vllm"]


def test_another_is_refused_by_name():
    with pytest.raises(EngineError, match='"llama"') as caught:
        engine_by_name("llama")
    assert "vllm" in caught.value.means
