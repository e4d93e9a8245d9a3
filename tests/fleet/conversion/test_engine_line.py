"""Commands of engines among other words."""

import pytest

from sparkfleet.fleet.conversion.engine_line import EngineFlag, engine_line


@pytest.mark.parametrize(
    ("text", "engine", "positional"),
    [
        ("vllm serve m --x", "vllm", ("m",)),
        ("exec /opt/venv/bin/vllm serve m", "vllm", ("m",)),
        ("nohup python3 -m vllm.entrypoints.openai.api_server --model m", "vllm", ()),
        ("python -m vllm.entrypoints.cli.main serve m", "vllm", ("m",)),
        ("numactl --all python3 -m sglang.launch_server --model-path m", "sglang", ()),
        ("sglang serve --model-path m", "sglang", ()),
        ("mpirun -n 2 trtllm-llmapi-launch trtllm-serve m --tp_size 2", "trtllm", ("m",)),
        ("trtllm-serve serve m", "trtllm", ("m",)),
        ("./build/bin/llama-server -m m.gguf", "llama.cpp", ()),
    ],
)
def test_engines(text, engine, positional):
    found = engine_line(text.split())
    assert (found.engine, found.positional) == (engine, positional)


@pytest.mark.parametrize(
    ("image", "text", "engine"),
    [
        ("vllm/vllm-openai:v0.20.0", "--model m", "vllm"),
        ("docker.io/vllm/vllm-openai@sha256:0", "org/m --x", "vllm"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "-m m.gguf", "llama.cpp"),
    ],
)
def test_images_whose_entrypoint_is_one(image, text, engine):
    assert engine_line(text.split(), image).engine == engine


@pytest.mark.parametrize(
    "text",
    ["echo vllm serve m", "pkill llama-server", "pip install vllm", "vllm bench serve", "bash -c x", ""],
)
def test_others(text):
    assert engine_line(text.split()) is None


def test_flags_have_the_words_behind_them():
    found = engine_line(
        ["vllm", "serve", "m", "--a_b=1", "--c", "x", "y", "-tp", "2", "--temp", "-1", "--last"]
    )
    assert found.flags == (
        EngineFlag("--a_b", ("1",), joined=True),
        EngineFlag("--c", ("x", "y"), joined=False),
        EngineFlag("-tp", ("2",), joined=False),
        EngineFlag("--temp", ("-1",), joined=False),
        EngineFlag("--last", (), joined=False),
    )
    assert [one.words for one in found.flags[:2]] == [("--a_b=1",), ("--c", "x", "y")]
    assert (found.first("--a-b"), found.first("-x", "-tp"), found.first("--none")) == ("1", "2", None)
