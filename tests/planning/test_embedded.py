"""Engines on CPUs in containers: what an image is taken for, and when it is refused. Processes: see test_choose.py."""

import pytest

from sparkfleet.errors import Infeasible
from sparkfleet.facts.node import EngineHome
from sparkfleet.planning.choose import plan_deployment
from sparkfleet.planning.embedded import MEMORY, SGLANG_MEMORY, SUPPOSED

IMAGE = f"localhost/engine@sha256:{'0' * 64}"
SGLANG = f"localhost/sglang-cpu@sha256:{'0' * 64}"


def first(ask, nodes, **fields):
    return plan_deployment(ask("builtin:tiny", **fields), nodes).groups[0].choice


def test_an_image_runs_with_its_own_python(cpu_node, ask):
    rung = first(ask, [cpu_node()], image=IMAGE)
    candidate = rung.candidate
    assert (candidate.runtime, candidate.image, candidate.python) == ("container", IMAGE, "python3")
    assert (candidate.engine, candidate.device, candidate.dtype) == ("vllm", "cpu", "float32")
    assert "nothing is known of the image" in rung.notes[0]
    assert rung.prediction.memory_bytes_per_rank == MEMORY


def test_its_version_is_supposed_to_be_that_of_the_nodes(cpu_node, ask):
    home = EngineHome(python="/x/bin/python", version="0.31.0+cpu")
    nodes = [cpu_node("a", engines={}), cpu_node("b", engines={"vllm": home})]
    assert first(ask, nodes, image=IMAGE).candidate.engine_version == "0.31.0+cpu"


def test_without_any_it_is_supposed_to_be_what_was_tried(cpu_node, ask):
    """Nothing has to be installed on a node for a container."""
    rung = first(ask, [cpu_node(engines={})], runtime="container", image=IMAGE)
    assert rung.candidate.engine_version == SUPPOSED["vllm"]
    assert SUPPOSED["vllm"] in rung.notes[0]


@pytest.mark.parametrize("fields", [{"image": SGLANG}, {"image": IMAGE, "engine": "sglang"}])
def test_the_name_tells_the_engine_unless_the_deployment_does(cpu_node, ask, fields):
    rung = first(ask, [cpu_node(engines={})], **fields)
    assert (rung.candidate.engine, rung.candidate.engine_version) == ("sglang", SUPPOSED["sglang"])
    assert rung.prediction.memory_bytes_per_rank == SGLANG_MEMORY


def test_processes_need_no_image_and_say_nothing_of_one(cpu_node, ask):
    rung = first(ask, [cpu_node()])
    assert (rung.candidate.runtime, rung.candidate.image, rung.notes) == ("process", None, ())


def test_an_image_that_is_known_is_built_for_gpus(cpu_node, ask):
    with pytest.raises(Infeasible) as error:
        first(ask, [cpu_node()], image="nvcr.io/nvidia/vllm:25.11-py3")
    assert "nvcr.io/nvidia/vllm:25.11-py3 needs a GPU" in error.value.means


def test_sglang_without_a_gpu_does_not_speculate_and_the_plan_says_so(cpu_node, ask):
    with pytest.raises(Infeasible) as error:
        first(ask, [cpu_node()], image=SGLANG, speculation={"method": "ngram", "tokens": 3})
    assert "built for CUDA only" in error.value.means
