"""Ceilings, formats and links of a DGX Spark: `physics.yaml`, checked on load."""

from __future__ import annotations

from typing import Literal

from sparkfleet.knowledge.data_file import DataFile
from sparkfleet.values import Value

Compute = Literal["bf16", "fp8", "fp4"]
FormatPart = Literal["attention", "mlp", "experts", "shared", "head", "embedding"]


class Ceilings(Value):
    """Measured ceilings of one Spark, with the source of each."""

    read_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float
    fp4_tflops: float

    def flops(self, compute: Compute) -> float:
        """FLOP/s of dense matrix products in that number format."""
        return {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "fp4": self.fp4_tflops}[compute] * 1e12


class Format(Value):
    """A way to store weights: bits per parameter by part, scales included."""

    attention: float
    mlp: float
    experts: float
    shared: float
    head: float
    embedding: float
    compute: Compute
    """The ceiling of its matrix products if the engine has a kernel for it."""
    klass: str
    """Formats of one class share efficiency factors."""

    @property
    def bits(self) -> dict[FormatPart, float]:
        """Bits by kind of part; vision and MTP stay in bf16."""
        return {
            "attention": self.attention,
            "mlp": self.mlp,
            "experts": self.experts,
            "shared": self.shared,
            "head": self.head,
            "embedding": self.embedding,
        }


class LinkSpeed(Value):
    """All-reduce over a link: time of a small message (µs) and bandwidth of a large one (GB/s)."""

    latency_us: float
    gb_per_s: float


class Physics(Value):
    """Contents of `physics.yaml`."""

    ceilings: Ceilings
    formats: dict[str, Format]
    chunks: dict[str, int]
    """Engine → its default number of tokens in one prefill step."""
    prompt_tails: dict[str, str]
    """Engine → first release that runs layers without keys and values of their own for a prompt's end only."""
    links: dict[str, LinkSpeed]


PHYSICS = DataFile("physics.yaml", Physics)


def physics() -> Physics:
    """The packaged ceilings, formats and links."""
    return PHYSICS.content
