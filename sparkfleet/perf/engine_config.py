"""Engine configuration that memory and speed depend on, once for both models."""

from __future__ import annotations

from typing import Any

from sparkfleet.values import Value

CHUNK = 8192
"""Tokens of one prefill chunk as plans have it; a pass over all weights each. NVIDIA's own lines for a Spark give vLLM this
many (dgx-spark-playbooks, nvidia/vllm; vllm-project/recipes, Qwen3.6 and DeepSeek-V4-Flash)."""


class EngineConfig(Value):
    """Engine, split, precision of the KV cache and drafts of one engine instance.

    `SpeedConfig` adds the parts that only speed depends on, `MemoryConfig` the sizes that only memory depends on;
    `predictor.Predictor` derives both from one configuration.
    """

    engine: str
    tp: int = 1
    """Tensor parallelism, ranks."""
    pp: int = 1
    """Pipeline parallelism, stages."""
    ep: int = 1
    """Expert parallelism, ranks."""
    dcp: int = 1
    """Decode context parallelism: ranks of `tp` that share one copy of the KV cache, split by tokens."""
    kv_bytes: float = 1.0
    """Bytes per cached element."""
    eager: bool = False
    """True without CUDA graphs."""
    method: str = "none"
    """Speculative method."""
    k: int = 0
    """Draft tokens per step."""
    chunk: int = CHUNK
    """Most tokens of one prefill pass (`--max-num-batched-tokens`, `--chunked-prefill-size`, `-ub`)."""

    disk_tables: bool = False
    """N-gram tables are read from the disk and take no memory."""

    def shared(self) -> dict[str, Any]:
        """The fields that both models have, to derive one's configuration from the other's."""
        return {name: getattr(self, name) for name in EngineConfig.model_fields}
