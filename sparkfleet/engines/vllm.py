"""vLLM: argv, environment and files per rank.

Flags are those of `vllm serve` 0.32 (0.11.1 has them too, but for those with a range). Ranks are joined by vLLM's own
multi-node mode (`--nnodes`), not by Ray: every rank gets the same arguments but for its number, and ranks above 0 are
headless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkfleet.engines.base import (
    DraftTokenCounts,
    PositionCounter,
    RankCommand,
    RankContext,
    cache_mounts,
    checkpoint_mounts,
    with_users,
)
from sparkfleet.engines.container import B12X
from sparkfleet.engines.guarded import METRICS_ENV, MODULE, START_ARGV
from sparkfleet.engines.harmony import encodings_env, encodings_mounts
from sparkfleet.engines.kernel_caches import cache_env
from sparkfleet.engines.media import allowed_domains
from sparkfleet.engines.nccl_env import Pairs, fabric_env, merged
from sparkfleet.engines.speculation import depth_ranges, own_method
from sparkfleet.engines.token_api import IdCompletions, TokenApi
from sparkfleet.engines.tool_parsers import parsers_of
from sparkfleet.engines.vllm_plugins.rank_files import files_of, with_path
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.planner.types.plan import READ_FILES, Candidate

QUANTIZATIONS = {"gptq-int4": "gptq_marlin", "gptq-int8": "gptq_marlin"}
"""Kernels that are set by name, so that vLLM refuses to start rather than take another. Marlin is the stable one on SM121
(field report 004); vLLM reads every other format from the checkpoint."""

_UNQUIET = parse_range("<0.16")
"""Releases without `--disable-access-log-for-endpoints`: parsers of 0.11.1, 0.12.0 and 0.15.1 refuse it, 0.16.0 has it. A
build whose release is not known is newer."""


class Vllm:
    """vLLM's OpenAI server, one process tree per rank."""

    name = "vllm"
    health_path = "/health"
    metrics_path = "/metrics"
    running_metric = "vllm:num_requests_running"
    waiting_metric = "vllm:num_requests_waiting"
    tokens_metric = "vllm:generation_tokens_total"
    # Blocks are allocated for each chunk of a prompt; its tokens are counted with the first one of the answer.
    step_metrics: tuple[str, ...] = ("vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total")
    draft_metrics: tuple[str, ...] = (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_drafts_total",
    )
    draft_positions: PositionCounter | None = PositionCounter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position"
    )
    token_api: TokenApi = IdCompletions()
    checks_token = True
    always_forwarded = False

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Draft tokens as the engine counts them."""
        return DraftTokenCounts(*(sums.get(name, 0.0) for name in self.draft_metrics))

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """The server bound to one address, with the token in the environment.

        A process of one rank runs the server's own module, which needs no `vllm` on the PATH; everything else `vllm serve`.
        """
        leads = context.rank == 0
        files = files_of(candidate, context)
        return RankCommand(
            argv=(
                *_command(candidate, context),
                *with_users(_flags(candidate, context), candidate.engine_args),
            ),
            env=with_path(merged(_environment(candidate, context), candidate.env), candidate, context),
            # --api-key would show in the process list.
            token_env="VLLM_API_KEY",  # noqa: S106 (the name of a variable)
            metrics_env=METRICS_ENV,
            files=files,
            mounts=(*checkpoint_mounts(context), *cache_mounts(context), *encodings_mounts(context)),
            health_path=self.health_path if leads else "",
        )


def _command(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    contained = candidate.runtime == "container"
    start = START_ARGV if contained and files_of(candidate, context) else ()
    if contained and candidate.device == "cuda":
        return (*start, "vllm", "serve", context.model_path)
    # The CPU wheel's `vllm` does not start by itself (see vllm_plugins/cpu_build.py), nor does it in a container.
    python = candidate.python if contained else context.python
    if candidate.shape.ranks == 1:
        return (*start, python, "-m", "vllm.entrypoints.openai.api_server", "--model", context.model_path)
    return (*start, python, "-m", "vllm.entrypoints.cli.main", "serve", context.model_path)


def _flags(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    flags = [
        *("--served-model-name", context.served_name),
        *(_server(candidate, context) if context.rank == 0 else ()),
        *("--max-model-len", str(candidate.context)),
        *("--max-num-seqs", str(candidate.concurrency)),
        *("--dtype", candidate.dtype),
        *_log(candidate),
        *("--allowed-media-domains", *allowed_domains(candidate)),
        *_memory(candidate, context),
        *(() if candidate.mmap else (READ_FILES,)),
        *_kernels(candidate),
        *(("--trust-remote-code",) if candidate.trust_remote_code else ()),
        *_speculation(candidate, context),
        *_kv_disk(candidate, context),
        *_parsers(candidate),
        *_group(candidate, context),
    ]
    if candidate.device == "cpu":
        # Compiling for the CPU takes longer than a built-in model ever runs (/health after 32 s instead of 20 s).
        flags += ["--enforce-eager"]
    return tuple(flags)


def _log(candidate: Candidate) -> tuple[str, ...]:
    """Leave out of the log what is requested every few seconds."""
    absent = _UNQUIET.contains(candidate.engine_version) is Truth.YES
    return () if absent else ("--disable-access-log-for-endpoints", "/health,/metrics")


def _server(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    """Flags of the HTTP server, which only rank 0 has."""
    return (
        *("--host", context.host, "--port", str(context.port)),
        *("--middleware", f"{MODULE}.Guard", "--disable-fastapi-docs"),
    )


def _memory(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    flags: list[str] = []
    fraction = candidate.fraction_of(context.rank)
    if candidate.kv_cache_bytes is not None:
        flags += ["--kv-cache-memory-bytes", str(candidate.kv_cache_bytes)]
    if fraction is not None:
        flags += ["--gpu-memory-utilization", f"{fraction:g}"]
    if candidate.kv_dtype != "auto":
        flags += ["--kv-cache-dtype", candidate.kv_dtype]
    if candidate.batch_tokens is not None:
        flags += ["--max-num-batched-tokens", str(candidate.batch_tokens)]
    return tuple(flags)


def _kv_disk(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    """Flags of the KV cache on the disk: every whole block goes through a pool in memory to a file of its own.

    vLLM refuses a KV connector beside expandable segments (`_disk_environment`) without the cumem allocator.
    """
    if candidate.kv_disk_bytes is None:
        return ()
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": candidate.kv_staging_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": context.kv_dir}],
        },
    }
    return (
        "--kv-transfer-config",
        json.dumps(config, separators=(",", ":")),
        "--enable-cumem-allocator",
    )


def _kernels(candidate: Candidate) -> tuple[str, ...]:
    # CUDA graphs need no flag here: vLLM captures them up to --max-num-seqs, and rules add --enforce-eager.
    name = QUANTIZATIONS.get(candidate.quant)
    return ("--quantization", name) if name and candidate.device == "cuda" else ()


def _speculation(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    wanted = candidate.speculation
    if wanted.method == "none":
        return ()
    config: dict[str, object] = {"method": own_method(candidate).name}
    if wanted.draft is not None:  # DSpark's weights may be in the target: then vLLM takes them from there
        config["model"] = context.draft_path or wanted.draft
    config["num_speculative_tokens"] = wanted.tokens
    if ranges := depth_ranges(candidate):
        config["num_speculative_tokens_per_batch_size"] = ranges
    config |= {key: _plain(value) for key, value in candidate.speculative}
    return ("--speculative-config", json.dumps(config, separators=(",", ":")))


def _plain(text: str) -> object:
    """The text as a number if it is one: rules have texts only."""
    try:
        return int(text)
    except ValueError:
        return text


def _parsers(candidate: Candidate) -> tuple[str, ...]:
    found = parsers_of(candidate.model, "vllm", candidate.engine_version)
    flags = ["--reasoning-parser", found.reasoning] if found.reasoning else []
    if found.tools:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", found.tools]
    return tuple(flags)


def _group(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    shape = candidate.shape
    if shape.ranks == 1:
        return ()
    flags = ["--tensor-parallel-size", str(shape.tp)]
    flags += ["--pipeline-parallel-size", str(shape.pp)] if shape.pp > 1 else []
    flags += ["--enable-expert-parallel"] if shape.ep > 1 else []
    flags += ["--decode-context-parallel-size", str(shape.dcp)] if shape.dcp > 1 else []
    flags += ["--distributed-executor-backend", "mp", "--nnodes", str(shape.ranks)]
    flags += ["--node-rank", str(context.rank), "--master-addr", context.leader]
    flags += ["--master-port", str(context.leader_port)]
    flags += ["--headless"] if context.rank else []
    return tuple(flags)


def _environment(candidate: Candidate, context: RankContext) -> Pairs:
    common = (
        ("HF_HUB_OFFLINE", "1"),  # weights are staged before a rank starts; an engine never downloads
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0"),  # a redirect leaves the allowed hosts
        ("VLLM_DO_NOT_TRACK", "1"),
        *encodings_env(context),
    )
    if candidate.device == "cpu":
        return (*common, *_cpu(candidate, context), *_fabric(candidate, context))
    cache: Pairs = (("VLLM_CACHE_ROOT", f"{context.cache_dir}/vllm"),) if context.cache_dir else ()
    if cache and B12X in (candidate.image or ""):
        # NVIDIA's recipes keep it, too.
        cache = (*cache, ("B12X_COMPILE_CACHE_DIR", f"{context.cache_dir}/b12x"))
    own = (*_heap(candidate), *_disk_environment(candidate))
    return (*common, *cache, *own, *cache_env(context), *_fabric(candidate, context))


def _heap(candidate: Candidate) -> Pairs:
    """Variable that gives freed buffers of weight files back at once.

    By itself glibc raises its threshold for mmap to 32 MB with the first buffers that are freed, and keeps one or two files
    of 512 MB after reading six (vLLM 0.32's own loop, tensors of 1 MB); with the threshold that it starts with, 4 MB.
    What it keeps is missing in the KV cache: host and GPU have one memory.
    """
    return () if candidate.mmap else (("MALLOC_MMAP_THRESHOLD_", "131072"),)


def _disk_environment(candidate: Candidate) -> Pairs:
    """Variables of the KV cache on the disk.

    Without expandable segments torch keeps what a long prefill took; with a KV connector two Sparks hung six times
    (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks, pull request 58).
    """
    return (
        () if candidate.kv_disk_bytes is None else (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
    )


def _cpu(candidate: Candidate, context: RankContext) -> Pairs:
    common = (
        # "auto" binds to NUMA nodes and refuses a second rank on a machine with one.
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("OMP_NUM_THREADS", "1"),
        *_uncompiled(candidate),
    )
    if candidate.shape.ranks == 1:
        # The worker inside the engine core's process, which has one of its own otherwise (platforms/cpu.py): a third less
        # memory and start-up for a single rank.
        return (*common, ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"))
    return common


def _uncompiled(candidate: Candidate) -> Pairs:
    """Variables that switch torch.compile off in a container. In spite of --enforce-eager a few functions (samplers; the
    vocabulary's mask under TP) would be compiled by g++ at the first token. An image may have no compiler, and the compiled
    code would be lost with the container."""
    return (("TORCHDYNAMO_DISABLE", "1"),) if candidate.runtime == "container" else ()


def _fabric(candidate: Candidate, context: RankContext) -> Pairs:
    if candidate.shape.ranks == 1:
        return ()
    # Without it vLLM advertises the address of the default route, which its peers may not reach ("mgmt-ip-wall").
    return (
        ("VLLM_HOST_IP", context.address),
        ("HOST_IP", context.address),
        *fabric_env(context, candidate.device),
    )
