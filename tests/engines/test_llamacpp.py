"""llama.cpp's command line; what the real program makes of it is in tests/integration/test_llamacpp.py."""

import pytest

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.engines.base import DraftTokenCounts
from sparkfleet.engines.llamacpp import MOST_SLOTS
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import Cause, EngineError
from sparkfleet.planner.types.plan import Candidate

LLAMACPP = engine_by_name("llama.cpp")
MODEL = GgufFiles(model="Q4_K_M/m-00001-of-00003.gguf")


@pytest.fixture
def launch(candidate, context):
    def launch(where=None, **fields):
        told = {
            "engine": "llama.cpp",
            "runtime": "container",
            "image": "ghcr.io/ggml-org/llama.cpp@sha256:0",
            "engine_version": "b11434",
            "gguf": MODEL,
            "context": 8192,
        }
        return LLAMACPP.launch(candidate(**{**told, **fields}), context(**(where or {})))

    return launch


def test_a_spark_in_a_container(launch, flags):
    one = launch()
    assert one.argv[0] == "/app/llama-server"
    assert flags(one.argv) == {
        "--model": "/models/m/Q4_K_M/m-00001-of-00003.gguf",
        "--no-mmproj": "",
        "--alias": "m",
        "--host": "127.0.0.1",
        "--port": "4321",
        "--ctx-size": "32768",
        "--parallel": "4",
        "--no-kv-unified": "",
        "--no-context-shift": "",
        "--cache-ram": "0",
        "--ctx-checkpoints": "2",
        "--fit": "off",
        "--load-mode": "dio",
        "--device": "CUDA0",
        "--gpu-layers": "999",
        "--batch-size": "2048",
        "--ubatch-size": "2048",
        "--jinja": "",
        "--metrics": "",
        "--no-slots": "",
        "--no-webui": "",
        "--offline": "",
        "--cors-origins": "localhost",
        "--no-cors-credentials": "",
        "--log-colors": "off",
        "--log-verbosity": "3",
    }
    assert one.token_env == "LLAMA_API_KEY"
    assert not any("key" in word for word in one.argv), "the key is in the environment only"
    assert dict(one.env) == {"HF_HUB_OFFLINE": "1"}
    assert [mount.target for mount in one.mounts] == ["/models/m"]
    assert one.mounts[0].read_only


def test_a_process_is_the_program_beside_the_interpreter(launch, flags):
    one = launch(runtime="process", image=None, device="cpu")
    assert one.argv[0] == "/venv/bin/llama-server"
    told = flags(one.argv)
    assert (told["--device"], told["--load-mode"]) == ("none", "none")
    assert not told.keys() & {"--gpu-layers", "--batch-size", "--ubatch-size"}


def test_a_tower_is_named_and_a_step_is_that_of_the_plan(launch, flags):
    files = GgufFiles(model="m.gguf", mmproj="mmproj-F16.gguf")
    told = flags(launch(gguf=files, batch_tokens=4096).argv)
    assert told["--mmproj"] == "/models/m/mmproj-F16.gguf"
    assert "--no-mmproj" not in told
    assert told["--batch-size"] == told["--ubatch-size"] == "4096"


def test_a_smaller_kv_cache_is_so_for_keys_and_values(launch, flags):
    told = flags(launch(kv_dtype="q8_0").argv)
    assert told["--cache-type-k"] == told["--cache-type-v"] == "q8_0"
    assert "--cache-type-k" not in flags(launch().argv)


def test_the_heads_of_the_checkpoint_draft(launch, flags):
    told = flags(launch(method="mtp", tokens=3).argv)
    assert told["--spec-type"] == "draft-mtp"
    assert told["--spec-draft-n-max"] == "3"
    assert not told.keys() & {"--spec-draft-model", "--spec-draft-ngl"}
    with pytest.raises(EngineError, match=r'llama.cpp has no speculative method "nextn"') as refused:
        launch(method="nextn", tokens=3)
    assert refused.value.because is Cause.FLAG


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("draft", "draft-simple"),
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
        ("dflash2", "draft-dflash"),
        ("dspark", "draft-dspark"),
        ("mtp", "draft-mtp"),
    ],
)
def test_a_draft_is_a_file_of_its_own_whole_on_the_gpu(launch, flags, method, name):
    files = GgufFiles(model="d-Q8_0.gguf")
    one = launch(
        method=method, tokens=7, draft="org/d-GGUF:Q8_0", gguf_draft=files, where={"draft_path": "/models/d"}
    )
    told = flags(one.argv)
    assert (told["--spec-type"], told["--spec-draft-n-max"]) == (name, "7")
    assert (told["--spec-draft-model"], told["--spec-draft-ngl"]) == ("/models/d/d-Q8_0.gguf", "999")
    assert "--spec-draft-hf" not in told, "nothing is downloaded"
    assert [mount.target for mount in one.mounts] == ["/models/m", "/models/d"]


def test_on_a_cpu_no_layer_of_a_draft_is_for_a_gpu(launch, flags):
    fields = {
        "draft": "/models/d",
        "gguf_draft": GgufFiles(model="d.gguf"),
        "where": {"draft_path": "/models/d"},
    }
    told = flags(launch(method="draft", tokens=2, device="cpu", runtime="process", image=None, **fields).argv)
    assert told["--spec-draft-model"] == "/models/d/d.gguf"
    assert "--spec-draft-ngl" not in told


def test_a_draft_without_a_gguf_file_is_refused(launch):
    with pytest.raises(EngineError, match=r'draft "org/d" has no GGUF file') as refused:
        launch(method="eagle3", tokens=3, draft="org/d")
    assert refused.value.because is Cause.FLAG


@pytest.mark.parametrize(("tokens", "length"), [(8, "4"), (4, "4"), (2, "2")])
def test_lookups_are_no_longer_than_what_they_draft(launch, flags, tokens, length):
    """Otherwise llama.cpp drafts nothing."""
    told = flags(launch(method="ngram", tokens=tokens).argv)
    assert told["--spec-type"] == "ngram-simple"
    assert (told["--spec-ngram-simple-size-n"], told["--spec-ngram-simple-size-m"]) == (length, str(tokens))


@pytest.mark.parametrize(
    ("method", "version", "since"), [("dflash2", "b11222", "b11223"), ("dspark", "b10614", "b10615")]
)
def test_a_build_may_be_too_old_for_a_method(launch, method, version, since):
    fields = {"draft": "org/d", "gguf_draft": GgufFiles(model="d.gguf"), "where": {"draft_path": "/models/d"}}
    with pytest.raises(EngineError, match=f"it came with {since}"):
        launch(method=method, tokens=7, engine_version=version, **fields)
    assert launch(method=method, tokens=7, engine_version=since, **fields)


def test_the_deployments_arguments_replace_ours(launch, flags):
    told = flags(launch(engine_args=("--cache-ram", "2048", "--kv-unified")).argv)
    assert told["--cache-ram"] == "2048"
    assert "--no-kv-unified" not in told


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gguf": None}, "has no GGUF file"),
        ({"nodes": 2}, "runs on one node here, not on 2"),
        ({"concurrency": MOST_SLOTS + 1}, "serves 256 requests at once, not 257"),
    ],
)
def test_what_it_cannot_do_is_refused_before_it_starts(launch, fields, words):
    with pytest.raises(EngineError, match=words) as refused:
        launch(**fields)
    assert refused.value.because is Cause.FLAG


def test_draft_tokens_are_those_that_it_counts():
    proposed, accepted, steps = LLAMACPP.draft_metrics
    assert LLAMACPP.drafts({proposed: 30.0, accepted: 21.0, steps: 10.0}, 3) == DraftTokenCounts(
        30.0, 21.0, 10.0
    )
    assert LLAMACPP.drafts({}, 3) == DraftTokenCounts()


def test_a_stored_candidate_keeps_its_files(candidate):
    one = candidate("llama.cpp", gguf=GgufFiles(model="m.gguf", mmproj="mmproj.gguf"))
    assert Candidate.model_validate_json(one.model_dump_json()) == one
