from __future__ import annotations

import pytest

from sparkfleet.staging.agent.held_image import ImageHeld, in_full

DIGEST = "d" * 64


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("vllm", "docker.io/library/vllm"),
        ("vllm:0.12", "docker.io/library/vllm:0.12"),
        ("vllm/vllm-openai:v0.27.1", "docker.io/vllm/vllm-openai:v0.27.1"),
        (f"vllm/vllm-openai@sha256:{DIGEST}", f"docker.io/vllm/vllm-openai@sha256:{DIGEST}"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "nvcr.io/nvidia/vllm:26.04-py3"),
        ("spark1:5000/vllm", "spark1:5000/vllm"),
        ("localhost/tts:latest", "localhost/tts:latest"),
    ],
)
def test_a_short_name_is_the_docker_hubs(image, full):
    assert in_full(image) == full


@pytest.mark.parametrize(
    ("image", "node", "runs"),
    [
        ("arm64", "arm64", True),
        ("amd64", "arm64", False),
        ("arm64", "amd64", False),
        ("", "arm64", True),
        ("386", "amd64", True),
        ("amd64", "", True),
    ],
)
def test_an_image_for_other_processors_does_not_run(image, node, runs):
    """One that may run is not refused."""
    held = ImageHeld(tool="docker", id="1" * 64, architecture=image, machine=node)
    assert held.runs_here is runs
    assert not held.model_copy(update={"id": ""}).runs_here
