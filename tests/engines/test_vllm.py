import json
from pathlib import Path

import pytest

from sparkfleet.engines.base import RankSite
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError
from sparkfleet.planning.plan import Candidate, Shape

FLAGS = sorted((Path(__file__).parent / "flags").glob("vllm-*.json"))
SITE = RankSite(
    rank=0, python="/venv/bin/python", model_path="/models/m", served_name="m", host="127.0.0.1", port=4321
)


def candidate(**fields):
    fields = {"context": 512, "concurrency": 4, "device": "cpu", **fields}
    return Candidate(
        model="/models/m", shape=Shape(nodes=("a",)), engine="vllm", engine_version="0.32.0", **fields
    )


def launch(**fields):
    return engine_by_name("vllm").launch(candidate(**fields), SITE)


def test_the_command_of_the_embedded_engine_word_for_word():
    assert launch(dtype="float32", kv_cache_bytes=64 << 20).argv == (
        "/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server",
        "--model", "/models/m",
        "--served-model-name", "m",
        "--host", "127.0.0.1",
        "--port", "4321",
        "--max-model-len", "512",
        "--max-num-seqs", "4",
        "--dtype", "float32",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--kv-cache-memory-bytes", "67108864",
        "--enforce-eager",
    )  # fmt: skip


@pytest.mark.parametrize("snapshot", FLAGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("fields", [{}, {"kv_cache_bytes": 1}, {"memory_fraction": 0.87, "device": "cuda"}])
def test_every_flag_exists_in_the_engines_own_parser(snapshot, fields):
    known = set(json.loads(snapshot.read_text())["options"])
    assert {word for word in launch(**fields).argv if word.startswith("--")} <= known


def test_what_the_user_adds_comes_last_and_wins():
    argv = launch(engine_args=("--max-model-len", "99")).argv
    assert argv[-2:] == ("--max-model-len", "99")


def test_the_token_is_named_and_not_given():
    one = launch(env=(("X", "1"),))
    assert one.token_env == "VLLM_API_KEY"
    assert "--api-key" not in one.argv
    assert "VLLM_API_KEY" not in dict(one.env)
    assert dict(one.env)["X"] == "1"


def test_on_a_gpu_nothing_of_the_cpu_is_set():
    one = launch(device="cuda", memory_fraction=0.8)
    assert "--enforce-eager" not in one.argv
    assert not any(name.startswith("VLLM_CPU") for name, _ in one.env)


def test_an_engine_that_cannot_be_launched_is_named():
    with pytest.raises(EngineError, match="'trtllm'") as caught:
        engine_by_name("trtllm")
    assert "vllm" in caught.value.means
