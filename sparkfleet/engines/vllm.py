"""vLLM: argv and environment per rank.

Flags are those of `vllm serve` 0.32 (present in 0.19 too unless said otherwise).
"""

from __future__ import annotations

from sparkfleet.engines.base import RankLaunch, RankSite
from sparkfleet.planning.plan import Candidate


class Vllm:
    """vLLM's OpenAI server, one process tree per rank."""

    name = "vllm"
    health_path = "/health"
    metrics_path = "/metrics"
    running_metric = "vllm:num_requests_running"
    waiting_metric = "vllm:num_requests_waiting"
    tokens_metric = "vllm:generation_tokens_total"

    def launch(self, candidate: Candidate, site: RankSite) -> RankLaunch:
        """The server module of the node's own vLLM, bound to one address, with the token in the environment."""
        return RankLaunch(
            argv=(site.python, "-m", "vllm.entrypoints.openai.api_server", *_flags(candidate, site)),
            env=(*_environment(candidate), *candidate.env),
            # --api-key would show in the process list.
            token_env="VLLM_API_KEY",  # noqa: S106 (the name of a variable)
        )


def _flags(candidate: Candidate, site: RankSite) -> tuple[str, ...]:
    flags = [
        *("--model", site.model_path),
        *("--served-model-name", site.served_name),
        *("--host", site.host),
        *("--port", str(site.port)),
        *("--max-model-len", str(candidate.context)),
        *("--max-num-seqs", str(candidate.concurrency)),
        *("--dtype", candidate.dtype),
        *("--disable-access-log-for-endpoints", "/health,/metrics"),  # both are asked every few seconds
    ]
    if candidate.kv_cache_bytes is not None:
        flags += ["--kv-cache-memory-bytes", str(candidate.kv_cache_bytes)]
    if candidate.memory_fraction is not None:
        flags += ["--gpu-memory-utilization", f"{candidate.memory_fraction:g}"]
    if candidate.device == "cpu":
        # Compiling for the CPU costs longer than the embedded model ever runs (32 s against 20 s to /health).
        flags += ["--enforce-eager"]
    return (*flags, *candidate.engine_args)


def _environment(candidate: Candidate) -> tuple[tuple[str, str], ...]:
    common = (
        ("HF_HUB_OFFLINE", "1"),  # weights are staged before a rank starts; an engine never downloads
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_DO_NOT_TRACK", "1"),
    )
    if candidate.device != "cpu":
        return common
    return (
        *common,
        # "auto" binds to NUMA nodes and refuses a second rank on a machine with one.
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("OMP_NUM_THREADS", "1"),
        # The engine core inside the server process: a third less memory and start-up for a single rank.
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    )
