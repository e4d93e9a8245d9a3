"""Caches of a model's layers: a KV cache that grows with the context, or a state of fixed size."""

from __future__ import annotations

from enum import StrEnum

from sparkfleet.errors import FactError
from sparkfleet.values import Value

KV_BITS = {
    "bf16": 16.0,
    "bfloat16": 16.0,
    "fp16": 16.0,
    "float16": 16.0,
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "int8": 8.0,
    "nvfp4": 4.5,
    "fp4_e2m1": 4.5,
}
"""Bits per cached element, with scales if they are per group: NVFP4 has one 8-bit scale per 16 elements."""

PACKED_LATENT_BYTES = {("fp8_ds_mla", 576): 656, ("nvfp4_ds_mla", 576): 352, ("fp8_ds_mla", 512): 584}
"""Bytes per token and layer of vLLM's packed latent layouts, by elements of the latent: DeepSeek V3.2 keeps 512 in FP8
with four scales and 64 in BF16, V4 keeps 448 and 64 (vLLM 0.32, `v1/attention/backends/mla/flashmla_sparse.py`)."""

STATE_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp32": 4, "float32": 4}

INDEX_GROUP = 128
INDEX_SCALE_BYTES = 4
"""Sparse attention keeps one FP8 index key per token, with one FP32 scale per 128 elements (vLLM 0.32,
`model_executor/models/deepseek_v2.py`, DeepseekV32IndexerCache)."""


class LayerKind(StrEnum):
    """Token mixer of a layer. `NONE`: it has none (the feed-forward layers of Nemotron-H are counted apart)."""

    FULL = "full"
    SLIDING = "sliding"
    LINEAR = "linear"
    MLA = "mla"
    NONE = "none"


class LinearState(Value):
    """State of fixed size that a layer (Gated DeltaNet, KDA, Mamba, a short convolution) keeps per sequence."""

    heads: int
    key_dim: int
    value_dim: int
    """The recurrent state has `heads × key_dim × value_dim` elements; LFM2 has none, only convolutions."""
    conv_channels: int
    conv_kernel: int
    """The convolution's state has `conv_channels × (conv_kernel - 1)` elements."""
    dtype: str
    """Precision of the recurrent state, from the config."""
    conv_dtype: str = "bf16"
    """Precision of the convolution's state: the model's own 16 bits, but for llama.cpp, which keeps both in 32."""

    @property
    def elements(self) -> int:
        """Elements per sequence and layer, of the recurrent state and the convolution's."""
        return self.heads * self.key_dim * self.value_dim + self.conv_channels * (self.conv_kernel - 1)

    def bytes(self, *, tp: int = 1, dtype: str | None = None) -> int:
        """Bytes per sequence and layer on one rank; heads and channels are divided among `tp` ranks."""
        recurrent = _share(self.heads, tp) * self.key_dim * self.value_dim
        convolution = _share(self.conv_channels, tp) * (self.conv_kernel - 1)
        return recurrent * _state_bytes(dtype or self.dtype) + convolution * _state_bytes(self.conv_dtype)


class LayerGroup(Value):
    """Equal layers. Dimensions are elements per head and token."""

    kind: LayerKind
    layers: int
    query_heads: int = 0
    kv_heads: int = 0
    """Heads that are cached; 1 for a latent (MLA), 0 if the layer uses another layer's cache."""
    key_dim: int = 0
    value_dim: int = 0
    """0 if key and value are one latent that is stored once."""
    window: int | None = None
    """Tokens that a sliding layer keeps, and a compressing layer keeps uncompressed."""
    tokens_per_entry: int = 1
    """Tokens that share one cached entry (DeepSeek V4 compresses 4 or 128 tokens into one)."""
    index_dim: int = 0
    """Elements of the index key that sparse attention keeps beside each entry."""
    index_bits: int = 8
    """Bits per element of that key; 8: FP8 with a scale per group; 16: of llama.cpp, without scales."""
    index_pool: int = 1
    """Entries that share one index key (GLM-5.3-Flash and Qwen3.8-Flash-Next pool 4 of them)."""
    index_heads: int = 0
    """Query heads of the index."""
    picked: int = 0
    """Tokens that sparse attention reads per query, selected by its index; 0: the attention is not sparse."""
    prefill_dim: int = 0
    """Elements per query head that a prefill multiplies for each token of context that it reads, key and value together;
    0: `key_dim + value_dim`. A latent's are those of the keys and values that are computed from it."""
    state: LinearState | None = None

    def token_bytes(self, *, tp: int = 1, dtype: str = "bf16") -> float:
        """Bytes that one more token adds to each of these layers on one rank, before any window is full."""
        return (self._entry_bytes(tp, dtype) + self._index_bytes() / self.index_pool) / self.tokens_per_entry

    def _entry_bytes(self, tp: int, dtype: str) -> float:
        heads = _share(self.kv_heads, tp)
        packed = PACKED_LATENT_BYTES.get((dtype, self.key_dim)) if self.value_dim == 0 else None
        if packed is not None:
            return heads * packed
        return heads * (self.key_dim + self.value_dim) * _kv_bits(dtype) / 8

    def _index_bytes(self) -> int:
        if self.index_bits != 8:
            return self.index_dim * self.index_bits // 8
        return self.index_dim + -(-self.index_dim // INDEX_GROUP) * INDEX_SCALE_BYTES


def _share(heads: int, tp: int) -> int:
    """Heads on one of `tp` ranks: their share, and at least one, because a rank without a head gets a copy of one."""
    if tp < 1:
        raise FactError(
            f"Tensor parallelism is {tp}; it must be at least 1.", do="Set tensor parallelism to 1 or more."
        )
    return -(-heads // tp)


def _kv_bits(dtype: str) -> float:
    # A layer without the packed layout stores its elements in the same precision.
    bits = KV_BITS.get(dtype.removesuffix("_ds_mla"))
    if bits is None:
        known = ", ".join([*KV_BITS, *sorted({name for name, _ in PACKED_LATENT_BYTES})])
        raise FactError(f'Unknown KV-cache dtype "{dtype}". Known: {known}.')
    return bits


def _state_bytes(dtype: str) -> int:
    size = STATE_BYTES.get(dtype)
    if size is None:
        raise FactError(f'Unknown state dtype "{dtype}". Known: {", ".join(STATE_BYTES)}.')
    return size
