"""Ranks in containers of a real Docker engine on simulated Sparks: real vLLM on the CPU, from an image that one node has."""

import json

import box_image
import node_docker
import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

DEPLOYMENT = (
    "name: tiny\nmodel: builtin:tiny\nengine: vllm\nruntime: container\nimage: {image}\n"
    "context: 512\nconcurrency: 4\nnodes: [spark2]\n"
)
SLOW_S = 600
"""For an engine that starts: 20 s alone, minutes if others build models beside it."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two Sparks with Docker, `tiny` on the second; the image was on the first."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("docker"))
        fleet.bring()
        image = node_docker.prepared(lab)
        fleet.ok("up")
        fleet.apply(DEPLOYMENT.format(image=image), timeout=SLOW_S)
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.containers(node.name, "docker") for node in lab.nodes} == {
            "spark1": [],
            "spark2": [],
        }
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def test_an_image_is_brought_to_the_other_nodes_docker_and_serves_there(served):
    assert "QSFP" in served.chat()
    assert served.containers("spark1", "docker") == []
    assert len(served.containers("spark2", "docker")) == 1


def test_what_a_container_leaves_belongs_to_the_nodes_user(served):
    """Docker runs it as root: what it wrote into the home would stay behind every removal."""
    listed = served.lab.exec("spark2", ["find", "/home/nvidia", "-not", "-user", "nvidia"]).stdout
    assert listed == ""


def test_docker_is_updated_and_the_engine_comes_back_at_its_rung(served):
    """The packages end dockerd and with it the container; here it is away for longer than a start waits for it."""
    before = served.group()
    node_docker.end(served.lab, "spark2")
    try:
        served.until(lambda: not served.is_ready(), timeout=60)
        said = served.until(lambda: "docker does not answer any more" in served.ok("events"), timeout=60)
        assert said
        served.until(lambda: "docker cannot look for the image" in served.ok("status"), timeout=180)
    finally:
        assert node_docker.start(served.lab, "spark2") == ""
    after = served.until(served.ready_group, timeout=SLOW_S)
    assert (after["generation"], after["rung"]) == (before["generation"], before["rung"])
    assert "QSFP" in served.chat()
    assert len(served.containers("spark2", "docker")) == 1


def test_an_image_of_ones_own_serves_beside_it(served):
    """As deployments/orpheus-tts.yaml: its model is a name of the Hub, and on no node."""
    image = served.lab.exec("spark2", ["docker", "images", "--quiet", "--no-trunc"]).stdout.split()[0]
    server = (
        "import http.server; h = http.server.SimpleHTTPRequestHandler;"
        " http.server.ThreadingHTTPServer(('127.0.0.1', 5031), h).serve_forever()"
    )
    text = {
        "name": "speech",
        "model": "canopylabs/orpheus-3b-0.1-ft",
        "engine": "custom",
        "image": f"{box_image.NAME}@{image}",
        "command": ["python3", "-c", server],
        "port": 5031,
        "health": "/etc/passwd",
        "memory": "1 GiB",
        "nodes": ["spark2"],
    }
    served.apply(json.dumps(text), "speech.yaml", timeout=SLOW_S)
    assert served.is_ready("speech")
    assert len(served.containers("spark2", "docker")) == 2
    served.ok("delete", "--yes", "speech")


def test_delete_leaves_nothing(served):
    served.ok("delete", "--yes", "tiny")
    served.until(lambda: served.containers("spark2", "docker") == [], timeout=60)
    left = [line for line in served.processes("spark2") if "vllm" in line.lower() or "supervisor" in line]
    assert left == []
