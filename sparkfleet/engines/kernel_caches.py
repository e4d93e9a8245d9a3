"""Environment that keeps on the node what an engine compiles and tunes while it starts. Pure.

A container loses its own files with every start, and in images whose file system is read-only its home is in memory, which
the KV cache has less of then. Every compiler has a variable and a default of its own, most of them below the home
directory, so each one is named. What is missing costs minutes at every start: 80 s of an engine's start on a GX10 are vLLM's
compiled graphs (blazux/qwen3.8-Flash-DGX, pull request 21), and one shape of a mixture's kernel for SM12x takes 12 s
(flashinfer-ai/flashinfer#4317).
"""

from __future__ import annotations

import hashlib

from sparkfleet.engines.base import RankContext
from sparkfleet.engines.nccl_env import Pairs
from sparkfleet.planner.types.plan import Candidate

_OF_ALL = (
    ("TRITON_CACHE_DIR", "triton"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    # Below the directory for temporary files by default; b12x of DeepSeek's image has its objects there, too
    # (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark, pull request 131).
    ("CUTE_DSL_CACHE_DIR", "cute-dsl"),
    # ~/.tilelang (pull request 65 of the same, and GLM-5.3-Flash-EXL3-2x-DGX-Sparks, 3): a kernel that one of two ranks
    # compiles while they serve stalls the other.
    ("TILELANG_CACHE_DIR", "tilelang"),
    # ~/.cache/tvm-ffi, whatever XDG_CACHE_HOME is: modules of TileLang, and of SGLang before 0.5.18.
    ("TVM_FFI_CACHE_DIR", "tvm-ffi"),
)
DRIVERS = ("CUDA_CACHE_PATH", "cuda")
"""Code that the driver itself compiles for this GPU, of a library that brings none for it; ~/.nv by default."""


def cache_env(context: RankContext) -> Pairs:
    """Variables of the compilers that every engine in Python may use; () if the node keeps nothing."""
    return _below(context, (*_OF_ALL, DRIVERS))


def driver_cache_env(context: RankContext) -> Pairs:
    """The variable of an engine that compiles nothing itself."""
    return _below(context, (DRIVERS,))


def sglang_cache_env(candidate: Candidate, context: RankContext) -> Pairs:
    """SGLang's own: its compiled modules, and for a single rank what it tuned and DeepGEMM's.

    SGLang's test of its snapshots lists every root that such an engine has (`test_snapshot_controller.py`): the first does
    not follow the second, and has its own default. Ranks tune together: if one has results of an earlier start and another
    has none, they may wait for each other for ever, as vLLM's do (vllm-project/vllm#57423). Newer releases compare them
    (sgl-project/sglang#40420); from which one on is not known.
    """
    roots = (("SGLANG_JIT_CACHE_DIR", "sglang-jit"),)
    alone = candidate.shape.ranks == 1
    return _below(context, (*roots, ("SGLANG_CACHE_DIR", "sglang")) if alone else roots)


def trtllm_cache_env(candidate: Candidate, context: RankContext) -> Pairs:
    """The file of TensorRT-LLM's autotuner, for a single rank; a few minutes of every start on a Spark without it
    (spark-arena/sparkrun#256).

    The engine compares nothing with what is in the file: its key here is the whole candidate, in a directory of its image.
    Several ranks tune together, and one that has a file would not.
    """
    if candidate.shape.ranks > 1:
        return ()
    content = candidate.model_dump_json(exclude={"media_domains"}, exclude_defaults=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    return _below(context, (("TLLM_AUTOTUNER_CACHE_PATH", f"autotune-{key}.json"),))


def _below(context: RankContext, named: tuple[tuple[str, str], ...]) -> Pairs:
    if not context.cache_dir:
        return ()
    return tuple((variable, f"{context.cache_dir}/{name}") for variable, name in named)
