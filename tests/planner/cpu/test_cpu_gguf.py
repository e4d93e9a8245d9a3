"""llama.cpp on nodes without a GPU."""

import pytest

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.hostfacts.node import InstalledEngine
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.cpu.cpu_gguf import gguf_memory
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.units import GIB

HERE = "/models/small"
SMALL = known_checkpoint("Qwen/Qwen3-0.6B-GGUF:Q8_0").model_copy(
    update={"id": HERE, "gguf": GgufFiles(model="small-Q8_0.gguf"), "weights_known": True}
)
VLLM = InstalledEngine(python="/venv/bin/python", version="0.32.0+cpu")


@pytest.fixture
def planned(cpu_node, ask):
    def on_cpu(version="b11434", checkpoint=SMALL, drafts=(), **fields):
        engines = {"llama.cpp": InstalledEngine(python="/venv/bin/python", version=version), "vllm": VLLM}
        fleet = Fleet(name="local", nodes=(cpu_node(engines=engines if version else {"vllm": VLLM}),))
        facts = {HERE: checkpoint} | {one.id: one for one in drafts}
        return plan_fleet([ask(HERE, **fields)], fleet, facts)

    return on_cpu


@pytest.mark.parametrize("version", ["b11434", "11434"])
def test_a_gguf_directory_is_served_by_what_is_installed(planned, version):
    found = planned(version, context=4096, concurrency=2).deployments[0].groups[0].choice.candidate
    assert (found.engine, found.engine_version, found.runtime) == ("llama.cpp", version, "process")
    assert (found.device, found.dtype, found.quant) == ("cpu", "auto", "gguf-q8_0")
    assert (found.gguf.model, found.kv_cache_bytes, found.context) == ("small-Q8_0.gguf", None, 4096)


def test_its_memory_is_the_file_and_the_slots(planned):
    prediction = planned(context=4096, concurrency=2).deployments[0].groups[0].choice.prediction
    assert prediction.memory_bytes_per_rank == gguf_memory(SMALL, 4096, 2)
    assert prediction.memory_bytes_per_rank.mid > SMALL.bytes_on_disk
    more = gguf_memory(SMALL, 8192, 2).mid - gguf_memory(SMALL, 4096, 2).mid
    assert more > 0.4 * GIB  # 28 layers, 8 heads of 128, two slots of 4,096 tokens more


def test_without_llama_cpp_it_is_refused_with_where_it_is_looked_for(planned):
    (one,) = planned(version="").refused
    assert "`llama-server` beside the environment's interpreter" in one.rejected[0].reason


def test_engine_and_weights_have_to_go_together(planned):
    (one,) = planned(engine="vllm").refused
    assert "llama.cpp alone, not with vllm" in one.rejected[0].reason
    (one,) = planned(engine="llama.cpp", checkpoint=SMALL.model_copy(update={"gguf": None})).refused
    assert "llama.cpp loads GGUF only" in one.rejected[0].reason


DRAFT = SMALL.model_copy(
    update={"id": "/models/draft", "gguf": GgufFiles(model="draft-Q4_0.gguf"), "bytes_on_disk": 10**8}
)


@pytest.mark.parametrize("method", ["draft", "eagle3", "dflash", "dflash2", "dspark", "mtp"])
def test_a_draft_of_its_own_is_a_second_file_that_takes_memory(planned, method):
    wanted = {"method": method, "tokens": 3, "draft": DRAFT.id}
    one = planned(speculation=wanted, context=4096, drafts=[DRAFT]).deployments[0].groups[0].choice
    found = one.candidate
    assert (found.gguf_draft, found.speculation.method) == (DRAFT.gguf, method)
    plain = planned(context=4096).deployments[0].groups[0].choice
    more = one.prediction.memory_bytes_per_rank.mid - plain.prediction.memory_bytes_per_rank.mid
    assert more > DRAFT.bytes_on_disk + 3 * GIB  # 28 layers, 8 heads of 128, 8 slots of 4,096 tokens


def test_lookups_in_the_text_take_no_memory(planned):
    one, plain = (
        planned(speculation=method, context=4096).deployments[0].groups[0].choice
        for method in ("ngram", "none")
    )
    assert (one.candidate.speculation.method, one.candidate.gguf_draft) == ("ngram", None)
    assert one.prediction.memory_bytes_per_rank.mid == pytest.approx(
        plain.prediction.memory_bytes_per_rank.mid, rel=0.01
    )


@pytest.mark.parametrize(
    ("method", "words"), [("nextn", "has no head for NEXTN"), ("dspark", "DSPARK needs a draft")]
)
def test_a_method_that_cannot_be_started_is_refused(planned, method, words):
    (one,) = planned(speculation=method).refused
    assert words in one.rejected[0].reason
