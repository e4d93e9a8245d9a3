"""Collectives of decode context parallelism (DCP): ranks that share one KV cache exchange queries and partial results.

With DCP over c of R tensor-parallel ranks each rank keeps the KV of every c-th token. In each attention layer the c ranks
gather their queries, attend to what they keep, and join softmax sums and outputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.perf.layers import Layers

COLLECTIVES = 3
"""Per layer: queries, softmax sums, outputs (vLLM 0.32: config/parallel.py, `dcp_comm_backend` "ag_rs"; "a2a" has 2, and
the sparse index one more, which joins what each rank picked)."""
ACTIVATION_BYTES = 2
"""Queries, outputs, and latents that a prefill gathers, are bf16."""


class ContextRanks(NamedTuple):
    """Ranks that share one KV cache, and what they exchange."""

    layers: Layers
    tp: int
    dcp: int
    link: LinkSpeed

    @property
    def _latency_s(self) -> float:
        """Seconds of the collectives of all layers, however little they carry."""
        rounds = (self.dcp - 1).bit_length()
        return self.layers.full * COLLECTIVES * rounds * self.link.latency_us * 1e-6

    def _transfer_s(self, size: float) -> float:
        return size / (self.link.gb_per_s * 1e9)

    def _queries_s(self, tokens: float) -> float:
        """Seconds to move the queries of so many tokens to the others, and their outputs back.

        A rank has 1/tp of the heads, and gets those of the other dcp - 1.
        """
        size = tokens * self.layers.query_elements * ACTIVATION_BYTES
        return self._transfer_s(size * (self.dcp - 1) / self.tp)

    def step_s(self, tokens: float) -> tuple[float, float]:
        """Seconds that a decode step of so many tokens takes longer: (latency, transfer)."""
        return self._latency_s, self._queries_s(tokens)

    def prefill_s(self, prompts: float, tokens: float, depth: float, chunk: float) -> float:
        """Seconds that a prefill takes longer.

        Dense latents are gathered for each chunk, all that is before it; other layers gather the queries instead.

        Args:
            prompts: that come together.
            tokens: of each.
            depth: tokens before it that are cached.
            chunk: most tokens of one pass.
        """
        passes = max(1, math.ceil(prompts * tokens / chunk))
        seconds = passes * self._latency_s
        if not self.layers.gathers_context:
            return seconds + self._queries_s(prompts * tokens)
        each = max(1, math.ceil(tokens / chunk))
        before = prompts * (each * depth + chunk * each * (each - 1) / 2)
        size = before * self.layers.kv_elements * ACTIVATION_BYTES
        return seconds + self._transfer_s(size * (self.dcp - 1) / self.dcp)
