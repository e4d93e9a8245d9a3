"""llama.cpp on nodes without a GPU."""

import pytest

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.hostfacts.node import InstalledEngine
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.cpu_gguf import gguf_memory
from sparkfleet.planner.search.planner import plan_fleet
from sparkfleet.units import GIB

HERE = "/models/small"
SMALL = known_checkpoint("Qwen/Qwen3-0.6B-GGUF:Q8_0").model_copy(
    update={"id": HERE, "gguf": GgufFiles(model="small-Q8_0.gguf"), "weights_known": True}
)
VLLM = InstalledEngine(python="/venv/bin/python", version="0.32.0+cpu")


@pytest.fixture
def planned(cpu_node, ask):
    def on_cpu(version="b11434", checkpoint=SMALL, **fields):
        engines = {"llama.cpp": InstalledEngine(python="/venv/bin/python", version=version), "vllm": VLLM}
        fleet = Fleet(name="local", nodes=(cpu_node(engines=engines if version else {"vllm": VLLM}),))
        return plan_fleet([ask(HERE, **fields)], fleet, {HERE: checkpoint})

    return on_cpu


@pytest.mark.parametrize("version", ["b11434", "11434"])
def test_a_gguf_directory_is_served_by_what_is_installed(planned, version):
    found = planned(version, context=4096, concurrency=2).deployments[0].groups[0].choice.candidate
    assert (found.engine, found.engine_version, found.runtime) == ("llama.cpp", version, "process")
    assert (found.device, found.dtype, found.quant) == ("cpu", "auto", "gguf-q8_0")
    assert (found.gguf.model, found.kv_cache_bytes, found.context) == ("small-Q8_0.gguf", None, 4096)


def test_its_memory_is_the_file_and_the_slots(planned):
    prediction = planned(context=4096, concurrency=2).deployments[0].groups[0].choice.prediction
    assert prediction.memory_bytes_per_rank == gguf_memory(SMALL, 4096, 2, 0)
    assert prediction.memory_bytes_per_rank.mid > SMALL.bytes_on_disk
    more = gguf_memory(SMALL, 8192, 2, 0).mid - gguf_memory(SMALL, 4096, 2, 0).mid
    assert more > 0.4 * GIB  # 28 layers, 8 heads of 128, two slots of 4,096 tokens more


def test_without_llama_cpp_it_is_refused_with_where_it_is_looked_for(planned):
    (one,) = planned(version="").refused
    assert "`llama-server` beside the environment's interpreter" in one.rejected[0].reason


def test_engine_and_weights_have_to_go_together(planned):
    (one,) = planned(engine="vllm").refused
    assert "llama.cpp alone, not with vllm" in one.rejected[0].reason
    (one,) = planned(engine="llama.cpp", checkpoint=SMALL.model_copy(update={"gguf": None})).refused
    assert "llama.cpp loads GGUF only" in one.rejected[0].reason


def test_a_method_that_is_not_started_is_refused(planned):
    (one,) = planned(speculation="ngram").refused
    assert "sparkfleet does not start it with llama.cpp yet" in one.rejected[0].reason
