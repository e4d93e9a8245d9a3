"""Quantisation of a checkpoint's weights: the format, and the parts of the model that it covers."""

from __future__ import annotations

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.values import Value


class Scheme(Value):
    """One way to store weights."""

    format: str
    """"fp8", "nvfp4", "mxfp4", "mxfp8", "int4", "int8", "nf4", …"""
    bits: int
    """Bits per weight, without scales."""
    group_size: int | None = None
    """Weights that share one scale; None: a scale per tensor or per channel, of negligible size."""
    block: tuple[int, int] | None = None
    """Rows and columns that share one scale (FP8 in blocks)."""
    scale_bits: int = 0
    """Bits per group or block, zero point included."""
    activations: str = "bf16"
    """Precision of the multiplication."""

    @property
    def stored_bits(self) -> float:
        """Bits on disk and in memory per weight, scales included."""
        shared = self.block[0] * self.block[1] if self.block else self.group_size
        return self.bits + (self.scale_bits / shared if shared else 0.0)


class Cover(Value):
    """The share of one part's weights that is stored by one scheme; None: in the model's own precision."""

    part: Part
    scheme: Scheme | None
    share: float
    assumed: bool = False
    """True: from the checkpoint's name, not from a file of it, so that its blocks are not known."""


class Quantization(Value):
    """Quantisation of a checkpoint, as `quantization_config` or `hf_quant_config.json` declares it."""

    method: str
    """"fp8", "gptq", "awq", "compressed-tensors", "modelopt", "mxfp4", "auto-round", "bitsandbytes"."""
    scheme: Scheme
    """Scheme of most quantised weights."""
    covers: tuple[Cover, ...] = ()
    """By part; a part that is not listed is not quantised."""
    kv_cache: str | None = None
    """The KV-cache dtype that the checkpoint has scales for ("fp8"), if any."""
    unread: tuple[str, ...] = ()
    """Patterns of module names that cannot be read: with them, `covers` is not exact."""

    @property
    def mixed(self) -> bool:
        """True if more than one scheme is in use."""
        return len({cover.scheme for cover in self.covers if cover.scheme is not None}) > 1

    def scheme_of(self, part: Part) -> Scheme:
        """The scheme of the quantised weights of a part (if it has any: see `covers`)."""
        found = [cover for cover in self.covers if cover.part is part and cover.scheme is not None]
        best = max(found, key=lambda cover: cover.share, default=None)
        return self.scheme if best is None or best.scheme is None else best.scheme


def fp8(*, block: tuple[int, int] | None = None, activations: str = "fp8") -> Scheme:
    """8-bit floating point, with an FP32 scale per block if there are blocks."""
    return Scheme(format="fp8", bits=8, block=block, scale_bits=32 if block else 0, activations=activations)


def nvfp4(*, group_size: int = 16, activations: str = "nvfp4") -> Scheme:
    """NVIDIA's 4-bit floating point: an FP8 scale per 16 weights."""
    return Scheme(format="nvfp4", bits=4, group_size=group_size, scale_bits=8, activations=activations)


def mxfp4(*, activations: str = "bf16") -> Scheme:
    """OCP 4-bit floating point: an 8-bit exponent per 32 weights."""
    return Scheme(format="mxfp4", bits=4, group_size=32, scale_bits=8, activations=activations)


def mxfp8() -> Scheme:
    """OCP 8-bit floating point: an 8-bit exponent per 32 weights."""
    return Scheme(format="mxfp8", bits=8, group_size=32, scale_bits=8, activations="mxfp8")


def integer(
    bits: int, group_size: int | None, *, activations: str = "bf16", zero_point: bool = True
) -> Scheme:
    """Integers with a 16-bit scale, and a zero point of as many bits as a weight, per group."""
    scale_bits = 16 + (bits if zero_point else 0) if group_size else 0
    return Scheme(
        format=f"int{bits}", bits=bits, group_size=group_size, scale_bits=scale_bits, activations=activations
    )


def exl3(bits: float) -> Scheme:
    """ExLlamaV3's trellis: as many bits per weight as its maker chose, scales included (3, 3.5, 4.05)."""
    whole = int(bits)
    return Scheme(format="exl3", bits=whole, group_size=100, scale_bits=round(100 * (bits - whole)))


def nf4() -> Scheme:
    """bitsandbytes' 4-bit normal float: an 8-bit scale per 64 weights."""
    return Scheme(format="nf4", bits=4, group_size=64, scale_bits=8)
