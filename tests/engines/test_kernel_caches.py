import pytest

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.engines.kernel_caches import (
    cache_env,
    driver_cache_env,
    sglang_cache_env,
    trtllm_cache_env,
)
from sparkfleet.engines.registry import engine_by_name

KEPT = {"cache_dir": "/k"}
OF_ALL = {
    "TRITON_CACHE_DIR": "/k/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/k/inductor",
    "FLASHINFER_WORKSPACE_BASE": "/k/flashinfer",
    "CUTE_DSL_CACHE_DIR": "/k/cute-dsl",
    "TILELANG_CACHE_DIR": "/k/tilelang",
    "TVM_FFI_CACHE_DIR": "/k/tvm-ffi",
    "CUDA_CACHE_PATH": "/k/cuda",
}


def test_every_compiler_has_a_directory_of_its_own(context):
    assert dict(cache_env(context(**KEPT))) == OF_ALL


def test_a_process_has_its_users_home(candidate, context):
    one, where = candidate("sglang"), context()
    assert cache_env(where) == driver_cache_env(where) == ()
    assert sglang_cache_env(one, where) == trtllm_cache_env(one, where) == ()


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        ("vllm", {"VLLM_CACHE_ROOT": "/k/vllm"}),
        ("sglang", {"SGLANG_CACHE_DIR": "/k/sglang", "SGLANG_JIT_CACHE_DIR": "/k/sglang-jit"}),
        ("trtllm", {}),
    ],
)
def test_an_engine_in_a_container_keeps_what_it_compiles(candidate, context, engine, own):
    one = candidate(engine, runtime="container", image="i@sha256:0")
    found = dict(engine_by_name(engine).launch(one, context(**KEPT)).env)
    assert found.items() >= {**OF_ALL, **own}.items()


def test_llama_cpp_compiles_nothing_but_its_driver_may(candidate, context):
    files = GgufFiles(model="m.gguf")
    one = candidate("llama.cpp", runtime="container", image="i@sha256:0", gguf=files)
    found = dict(engine_by_name("llama.cpp").launch(one, context(**KEPT)).env)
    assert found["CUDA_CACHE_PATH"] == "/k/cuda"
    assert "TRITON_CACHE_DIR" not in found


def test_the_deployments_own_directory_wins(candidate, context):
    one = candidate("vllm", runtime="container", image="i@sha256:0", env=(("TRITON_CACHE_DIR", "/mine"),))
    assert dict(engine_by_name("vllm").launch(one, context(**KEPT)).env)["TRITON_CACHE_DIR"] == "/mine"


def test_ranks_of_sglang_that_tune_together_keep_compiled_modules_only(candidate, context):
    found = dict(sglang_cache_env(candidate("sglang", nodes=2), context(0, 2, **KEPT)))
    assert found == {"SGLANG_JIT_CACHE_DIR": "/k/sglang-jit"}


@pytest.fixture
def tuned(candidate, context):
    def tuned(**fields):
        found = dict(trtllm_cache_env(candidate("trtllm", **fields), context(**KEPT)))
        return found["TLLM_AUTOTUNER_CACHE_PATH"]

    return tuned


def test_what_tensorrt_llm_tuned_is_for_exactly_one_candidate(tuned):
    one = tuned()
    assert one.startswith("/k/autotune-")
    assert one.endswith(".json")
    assert tuned() == tuned(media_domains=("example.org",)) == one
    others = (
        {"context": 8192},
        {"concurrency": 8},
        {"model": "org/n"},
        {"method": "eagle3", "draft": "org/d", "tokens": 3},
    )
    assert len({one, *(tuned(**fields) for fields in others)}) == 1 + len(others)


def test_ranks_of_tensorrt_llm_tune_together_at_every_start(candidate, context):
    assert trtllm_cache_env(candidate("trtllm", nodes=2), context(0, 2, **KEPT)) == ()
