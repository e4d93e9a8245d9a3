"""Answers of real vLLM through the gateway, held against the engine asked directly: ids and times aside, byte for byte.

A stream is compared without the borders between its events: vLLM joins what its reader has not taken yet.
"""

import json
import sys

import pytest
from live_fleet import TINY
from unchanged_answers import REQUESTS, Side, answers_of_both, joined, without_own

from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.runtime.ports import free_port
from sparkfleet.tiny_models import cache

pytestmark = [pytest.mark.integration, pytest.mark.full]

DEPLOYMENT = (
    TINY.replace("builtin:tiny", "builtin:tiny-vision")
    + "engine_args: [--enable-auto-tool-choice, --tool-call-parser=hermes]\n"
)


@pytest.fixture(scope="module", autouse=True)
def engine(fleet):
    """The engine, whose model takes images and tools."""
    fleet.apply(fleet.write("tiny.yaml", DEPLOYMENT))
    fleet.until(lambda: fleet.deployment()["state"] == "ready" and len(fleet.deployment()["groups"]) == 1)
    (group,) = fleet.deployment()["groups"]
    name = f"tiny/g{group['generation']}/{group['replica']}"
    return Side(group["url"], engine_token(fleet.paths.read_engine_secret().encode(), name))


@pytest.fixture
def gateway(fleet):
    return Side(fleet.endpoint.removesuffix("/v1"), fleet.key)


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_is_the_engines_own(engine, gateway, name):
    path, body = REQUESTS[name]
    direct, through = answers_of_both(engine, gateway, path, {"model": "tiny", **body})
    assert direct[0] == 200, direct
    assert (through[0], through[1]) == direct[:2]
    assert without_own(through[2]) == without_own(direct[2])


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("counted", [True, False], ids=["with usage", "without"])
def test_a_stream_is_the_engines_own(engine, gateway, name, counted):
    path, body = REQUESTS[name]
    options = {"stream_options": {"include_usage": True}} if counted else {}
    body = {"model": "tiny", **body, "stream": True, **options}
    direct, through = answers_of_both(engine, gateway, path, body)
    assert direct[0] == 200, direct
    assert (through[0], through[1]) == direct[:2]
    assert joined(through[2]) == joined(direct[2])


@pytest.fixture
def vectors(fleet):
    """vLLM as a workload of its owner's, which makes embeddings of the tiny model's last layer.

    In float32: in bfloat16 the last digits of two inputs depend on whether the engine computes them in one batch, and
    its CPU kernel for them ends some workers with an illegal instruction.
    """
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={cache.path('tiny')}"]
    command += ["--served-model-name=vectors", "--host=127.0.0.1", f"--port={port}", "--max-model-len=512"]
    command += ["--runner=pooling", "--convert=embed", "--dtype=float32"]
    command += ["--enforce-eager", "--gpu-memory-utilization=0.1"]
    spec = {
        "name": "vectors",
        "model": "tiny/vectors",
        "engine": "custom",
        "command": command,
        "port": port,
        "health": "/health",
        "memory": "3 GiB",
    }
    fleet.apply(fleet.write("vectors.yaml", json.dumps(spec)))
    yield Side(f"http://127.0.0.1:{port}", "")
    fleet.ok("delete", "--yes", "vectors")


def test_embeddings_are_the_engines_own(vectors, gateway):
    body = {"model": "vectors", "input": ["A rail is", "a cable"]}
    for more in ({}, {"encoding_format": "base64"}):
        direct, through = answers_of_both(vectors, gateway, "/v1/embeddings", {**body, **more})
        assert direct[0] == 200, direct
        assert (through[0], through[1]) == direct[:2]
        assert without_own(through[2]) == without_own(direct[2])
