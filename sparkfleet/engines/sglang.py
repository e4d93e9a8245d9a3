"""SGLang: argv and environment per rank.

Flags are those of `sglang.launch_server` 0.5.12 and 0.5.23, by their full names: `--tp` works only until another option
begins so. Ranks are joined by `--dist-init-addr`; speculative flags have to be the same on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkfleet.engines.base import (
    DraftTokenCounts,
    LaunchFile,
    PositionCounter,
    RankCommand,
    RankContext,
    cache_mounts,
    checkpoint_mounts,
    files_at,
    with_users,
)
from sparkfleet.engines.guarded import GUARD, METRICS_ENV, MODULE
from sparkfleet.engines.harmony import encodings_env, encodings_mounts
from sparkfleet.engines.kernel_caches import cache_env, sglang_cache_env
from sparkfleet.engines.media import allowed_domains
from sparkfleet.engines.nccl_env import Pairs, fabric_env, merged
from sparkfleet.engines.speculation import DepthRange, depth_ranges, own_method
from sparkfleet.engines.token_api import NativeGenerate, TokenApi
from sparkfleet.engines.tool_parsers import parsers_of
from sparkfleet.errors import EngineError
from sparkfleet.knowledge.engines.method_support import counts_beam
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate

TOKEN_ENV = "SPARKFLEET_ENGINE_TOKEN"  # noqa: S105 (the name of a variable)

_START = (
    "import os, runpy, sys; "
    f"sys.argv += ['--api-key', os.environ['{TOKEN_ENV}']]; "
    "sys.path.insert(0, {files!r}); "
    f"import {MODULE}; {MODULE}.install(); "
    "runpy.run_module('sglang.launch_server', run_name='__main__')"
)
"""`python -m sglang.launch_server` behind the guard in `files`, with the key from the environment: SGLang accepts it on the
command line only, which every user of the node can read."""

KV_DTYPES = {"fp8": "fp8_e4m3"}
"""KV precisions that SGLang names differently."""

_MEDIA = parse_range(">=0.5.23")
"""Releases with `--allowed-media-domains`: 0.5.12 has none."""

STORE = "rendezvous"
"""File for the rendezvous of a group of one rank."""
STEPS = "adaptive.json"
"""Steps of speculation by batch size: the smallest batch of each range, and the only number allowed there."""
STORE_IN_CONTAINER = f"/tmp/{STORE}"  # noqa: S108 (a container's own, and every start has a new one)

CPU_KV_TOKENS = 8192
CPU_FRACTION = "0.1"
"""Size of the KV pool on a CPU, tokens, and its share of memory: SGLang's default takes nearly all of it."""


class Sglang:
    """SGLang's OpenAI server, one process tree per rank."""

    name = "sglang"
    health_path = "/health"
    metrics_path = "/metrics"
    running_metric = "sglang:num_running_reqs"
    waiting_metric = "sglang:num_queue_reqs"
    # Updated with every step; `sglang:generation_tokens_total` moves only when a request is finished.
    tokens_metric = "sglang:realtime_tokens_total"
    step_metrics: tuple[str, ...] = ("sglang:num_used_tokens",)
    # Its rate of acceptance is a gauge of the last interval; these are counted when a request is finished.
    draft_metrics: tuple[str, ...] = (
        "sglang:spec_verify_calls_total",
        "sglang:generation_tokens_total",
        "sglang:num_requests_total",
    )
    draft_positions: PositionCounter | None = None
    token_api: TokenApi = NativeGenerate()
    checks_token = True
    always_forwarded = False

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Draft tokens from the numbers of verification steps, tokens and requests.

        A step verifies one chain of draft tokens and yields the accepted ones and one more; a request's first token comes
        from prefill. Of a beam its depth counts, not its branches: only one of them can be accepted. With a depth by load,
        `tokens` is the depth for one request: under load the share of accepted draft tokens is at least this.
        """
        steps, generated, requests = (sums.get(name, 0.0) for name in self.draft_metrics)
        accepted = max(0.0, generated - requests - steps) if steps else 0.0
        return DraftTokenCounts(steps * tokens, accepted, steps)

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """The server bound to one address. Only rank 0 serves; the others answer /health without serving requests."""
        python = candidate.python if candidate.runtime == "container" else context.python
        return RankCommand(
            argv=(
                python,
                "-c",
                _start(candidate, context),
                *with_users(_flags(candidate, context), candidate.engine_args),
            ),
            env=merged(_environment(candidate, context), candidate.env),
            token_env=TOKEN_ENV,
            metrics_env=METRICS_ENV,
            files=_files(candidate),
            mounts=(*checkpoint_mounts(context), *cache_mounts(context), *encodings_mounts(context)),
            health_path=self.health_path if context.rank == 0 else "",
        )


def _start(candidate: Candidate, context: RankContext) -> str:
    return _START.replace("{files!r}", repr(files_at(candidate, context)))


def _flags(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    return (
        *("--model-path", context.model_path),
        *("--served-model-name", context.served_name),
        *("--host", context.host, "--port", str(context.port)),
        *("--context-length", str(candidate.context)),
        *("--max-running-requests", str(candidate.concurrency)),
        *("--dtype", candidate.dtype),
        *("--enable-metrics",),
        # An idle scheduler spins: a whole core and 1.6 W; with it the first token after a pause takes as long as before
        # (hasso5703/dgx-spark-qwen38, pull request 4).
        *("--sleep-on-idle",),
        *_media(candidate),
        *_memory(candidate, context),
        *_quantization(candidate),
        *(("--trust-remote-code",) if candidate.trust_remote_code else ()),
        *_speculation(candidate, context),
        *_parsers(candidate),
        *_group(candidate, context),
        *_cpu_flags(candidate),
    )


def _media(candidate: Candidate) -> tuple[str, ...]:
    """Hosts of images and video; releases before the flag fetch from any, so that only the gateway refuses them."""
    given = _MEDIA.contains(candidate.engine_version) is Truth.YES
    return ("--allowed-media-domains", *allowed_domains(candidate)) if given else ()


def _memory(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    flags: list[str] = []
    fraction = candidate.fraction_of(context.rank)
    if fraction is not None:
        flags += ["--mem-fraction-static", f"{fraction:g}"]
    if candidate.kv_dtype != "auto":
        flags += ["--kv-cache-dtype", KV_DTYPES.get(candidate.kv_dtype, candidate.kv_dtype)]
    if candidate.batch_tokens is not None:
        flags += ["--chunked-prefill-size", str(candidate.batch_tokens)]
    return tuple(flags)


def _quantization(candidate: Candidate) -> tuple[str, ...]:
    """NVIDIA's NVFP4 checkpoints need `modelopt_fp4` (its playbook for SGLang); others declare their method."""
    nvidias = candidate.quant == "nvfp4" and candidate.model.lower().startswith("nvidia/")
    return ("--quantization", "modelopt_fp4") if nvidias else ()


def _speculation(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    wanted = candidate.speculation
    if wanted.method == "none":
        return ()
    support = own_method(candidate)
    flags = ["--speculative-algorithm", _algorithm(wanted, support.name)]
    if wanted.draft is not None:
        flags += ["--speculative-draft-model-path", context.draft_path or wanted.draft]
    if wanted.method == "dspark":
        # The block is the draft tokens alone; SGLang adds the token before them. A draft in the target needs no path.
        return (*flags, "--speculative-dspark-block-size", str(wanted.tokens))
    if support.block == "window":
        # This flag counts the verified tokens: the draft tokens and the one before them.
        return (*flags, "--speculative-num-draft-tokens", str(wanted.tokens + 1))
    flags += ["--speculative-num-steps", str(wanted.tokens), "--speculative-eagle-topk", str(wanted.topk)]
    if wanted.beam_tokens is not None:
        flags += ["--speculative-num-draft-tokens", str(wanted.beam_tokens)]
    elif wanted.topk == 1:
        flags += ["--speculative-num-draft-tokens", str(wanted.tokens + 1)]  # a chain has no other number
    elif not counts_beam(candidate.engine_version):
        flags += ["--speculative-num-draft-tokens", str(wanted.tokens * wanted.topk)]
    return (*flags, *_by_load(candidate, context))


def _by_load(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    """The steps by batch size are in a file: the flag alone would take SGLang's own, from 0 to 7 steps."""
    if not _steps(candidate):
        return ()
    return (
        "--speculative-adaptive",
        "--speculative-adaptive-config",
        f"{files_at(candidate, context)}/{STEPS}",
    )


def _steps(candidate: Candidate) -> tuple[DepthRange, ...]:
    """The steps by batch size; chains alone have them."""
    return depth_ranges(candidate) if candidate.speculation.topk == 1 else ()


def _algorithm(wanted: Speculation, name: str) -> str:
    # NEXTN is another name of EAGLE with the checkpoint's own heads. With an explicit beam the ladder calls it EAGLE, as
    # SGLang's documentation does.
    return "EAGLE" if wanted.method == "nextn" and wanted.beam_tokens is not None else name


def _parsers(candidate: Candidate) -> tuple[str, ...]:
    found = parsers_of(candidate.model, "sglang", candidate.engine_version)
    flags = ["--reasoning-parser", found.reasoning] if found.reasoning else []
    flags += ["--tool-call-parser", found.tools] if found.tools else []
    return tuple(flags)


def _group(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    shape = candidate.shape
    flags = ["--tp-size", str(shape.tp)]
    flags += ["--pp-size", str(shape.pp)] if shape.pp > 1 else []
    flags += ["--ep-size", str(shape.ep)] if shape.ep > 1 else []
    flags += ["--dcp-size", str(shape.dcp)] if shape.dcp > 1 else []
    if shape.ranks > 1:
        flags += ["--nnodes", str(shape.ranks), "--node-rank", str(context.rank)]
        flags += ["--dist-init-addr", f"{_bracketed(context.leader)}:{context.leader_port}"]
    return tuple(flags)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _cpu_flags(candidate: Candidate) -> tuple[str, ...]:
    if candidate.device != "cpu":
        return ()
    if candidate.speculation.method != "none":
        raise EngineError(
            "SGLang on a CPU cannot speculate.",
            means="Its speculative kernels are in sgl_kernel, which is built for CUDA only.",
            do="Set `speculation: none`, or use vLLM, whose CPU build can.",
        )
    tokens = str(max(CPU_KV_TOKENS, candidate.context))
    share = () if candidate.memory_fraction is not None else ("--mem-fraction-static", CPU_FRACTION)
    return ("--device", "cpu", "--disable-overlap-schedule", "--max-total-tokens", tokens, *share)


def _environment(candidate: Candidate, context: RankContext) -> Pairs:
    # Weights are staged before a rank starts; an engine never downloads.
    common = (("HF_HUB_OFFLINE", "1"), *encodings_env(context), *_meeting(candidate, context))
    ranks = candidate.shape.ranks
    # Without it SGLang derives its address from the default route, and hangs if there is none.
    own = (("SGLANG_HOST_IP", context.address), ("HOST_IP", context.address)) if ranks > 1 else ()
    fabric = fabric_env(context, candidate.device) if ranks > 1 else ()
    if candidate.device == "cpu":
        # One entry per rank of the group; without it SGLang requires a NUMA node for each.
        bind = (("SGLANG_CPU_OMP_THREADS_BIND", "|".join(str(rank) for rank in range(ranks))),)
        return (*common, *(bind if ranks > 1 else ()), *own, *fabric)
    # Ranks with unequal memory, or with another engine beside one of them, else refuse to start at a difference of 10 %
    # (0.5.23: sglang/srt/distributed/bootstrap.py); plans size all of them for the least.
    unequal = (("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "0"),) if ranks > 1 else ()
    caches = (*cache_env(context), *sglang_cache_env(candidate, context))
    return (*common, *caches, *own, *unequal, *fabric)


def _meeting(candidate: Candidate, context: RankContext) -> Pairs:
    """Rendezvous of a single rank: a file.

    By default SGLang takes a random port for it, on which PyTorch's store listens on every address (decisions.md, 17).
    """
    if candidate.shape.ranks > 1:
        return ()
    path = STORE_IN_CONTAINER if candidate.runtime == "container" else f"{context.files_dir}/{STORE}"
    return (("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", f"file://{path}"),)


def _files(candidate: Candidate) -> tuple[LaunchFile, ...]:
    """Files of a rank: the guard, depths by load, and for a process an empty store, or PyTorch would read that of a killed
    one."""
    alone = candidate.shape.ranks == 1 and candidate.runtime == "process"
    common = (GUARD, LaunchFile(name=STORE, text="")) if alone else (GUARD,)
    steps = {str(one.first): {"candidate_steps": [one.tokens]} for one in _steps(candidate)}
    return (*common, LaunchFile(name=STEPS, text=json.dumps(steps))) if steps else common
