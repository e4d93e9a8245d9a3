import pytest

from sparkfleet.engines.harmony import is_harmony
from sparkfleet.engines.registry import engine_by_name


def test_gpt_oss_alone_is_harmony():
    assert is_harmony("openai/gpt-oss-120b")
    assert not is_harmony("Qwen/Qwen3-30B-A3B-FP8")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_engine_finds_them_offline(candidate, context, engine):
    one = candidate(engine, model="openai/gpt-oss-120b", runtime="container", image="i")
    launch = engine_by_name(engine).launch(one, context(encodings_dir="/state/tiktoken"))
    assert dict(launch.env)["TIKTOKEN_ENCODINGS_BASE"] == "/state/tiktoken"
    assert "/state/tiktoken" in [mount.target for mount in launch.mounts]
    assert "TIKTOKEN_ENCODINGS_BASE" not in dict(engine_by_name(engine).launch(one, context()).env)
