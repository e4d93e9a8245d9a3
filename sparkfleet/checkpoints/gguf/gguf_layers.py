"""The cache or state of each layer by the keys of a GGUF file, as llama.cpp allocates it.

Follows `llama_model_base::load_hparams`, `llama_hparams` and `llama_model::create_memory` of llama.cpp b11434, whose sizes
are a function of these keys alone. So an architecture that is not listed is read as well, if it has plain attention.
"""

from __future__ import annotations

from typing import TypedDict

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind, LinearState
from sparkfleet.checkpoints.gguf.gguf_architectures import (
    INDEXED,
    INTERVAL,
    KIMI_DELTA,
    LATENT,
    NEMOTRON_H,
    NO_TEXT,
    OWN_CACHES,
    RECURRENT_ALWAYS,
    RECURRENT_BESIDE,
    RECURRENT_BY_INTERVAL,
    RECURRENT_WITHOUT_HEADS,
    SHARED_KV_FROM,
    SHORT_CONVOLUTION,
    SLIDING,
    SLIDING_LISTED,
)
from sparkfleet.checkpoints.io.config_json import Config, per_layer
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.errors import FactError

MOST_GGUF_LAYERS = 512
"""Limit of llama.cpp (`LLAMA_MAX_LAYERS`)."""
MOST_WIDTH = 1 << 24
HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
PATTERN, WINDOW = "attention.sliding_window_pattern", "attention.sliding_window"


def refuse_architecture(architecture: str, where: str) -> None:
    """Raises FactError for an architecture that writes no text, or whose caches are not known."""
    if architecture in NO_TEXT:
        raise FactError(
            f"{where}: its architecture {architecture} does not write text token by token.",
            means="Plans, their speeds and the test of a group before it serves are for text.",
            do="Run its server with `engine: custom` and its `memory`.",
        )
    if architecture in OWN_CACHES:
        raise FactError(
            f"{where}: the cache that llama.cpp keeps for the architecture {architecture} is not known.",
            means="Its memory per token cannot be derived, so it cannot be planned.",
            do="Give the checkpoint in safetensors format; or run llama-server with `engine: custom` and its `memory`.",
        )


class _Index(TypedDict):
    """The fields of a `LayerGroup` that describe its index."""

    index_dim: int
    index_bits: int
    index_heads: int
    picked: int


_NO_INDEX = _Index(index_dim=0, index_bits=8, index_heads=0, picked=0)


class GgufLayers:
    """The layers of one model. `own`: the keys of its architecture, without the prefix."""

    def __init__(self, architecture: str, own: Config) -> None:
        self._architecture = architecture
        self._own = own
        every = own.integer("block_count", high=MOST_GGUF_LAYERS)
        self.drafting = own.integer_or(0, "nextn_predict_layers", high=every)
        """Layers of multi-token prediction, behind the decoder's."""
        self.count = every - self.drafting
        """Decoder layers."""
        self.hidden = own.integer("embedding_length", high=MOST_WIDTH)
        self._every = every

    def read(self) -> tuple[LayerGroup, ...]:
        """One group of a single layer for every decoder layer, in order.

        Raises:
            FactError: a key is missing or wrong.
        """
        return tuple(self._layer(index) for index in range(self.count))

    def listed(self, key: str, index: int, default: int = 0) -> int:
        """The value of a key for a layer: one number for all layers, or a list."""
        values = self._own.values.get(key)
        if isinstance(values, list):
            listed = self._own.integers(key, high=MOST_WIDTH) or ()
            per_layer(listed, self._every, self._own, key)
            return listed[index]
        return self._own.integer_or(default, key, high=MOST_WIDTH)

    def _layer(self, index: int) -> LayerGroup:
        if self._architecture in NEMOTRON_H and self.listed("feed_forward_length", index):
            return LayerGroup(kind=LayerKind.NONE, layers=1)
        if self._is_recurrent(index):
            return LayerGroup(kind=LayerKind.LINEAR, layers=1, state=self._state(index))
        if not self._kv_heads(index):
            return LayerGroup(kind=LayerKind.NONE, layers=1)
        group = self._attention(index)
        if self._architecture in RECURRENT_BESIDE:
            return group.model_copy(update={"state": self._state(index)})
        return group

    def _is_recurrent(self, index: int) -> bool:
        if self._architecture in RECURRENT_ALWAYS:
            return True
        if self._architecture in RECURRENT_WITHOUT_HEADS | NEMOTRON_H:
            return self._kv_heads(index) == 0
        if self._architecture not in RECURRENT_BY_INTERVAL:
            return False
        if self._own.has("attention.recurrent_layers"):
            return bool(self._flags("attention.recurrent_layers")[index])
        interval = self._own.integer_or(INTERVAL, "full_attention_interval", low=1, high=MOST_GGUF_LAYERS)
        return (index + 1) % interval != 0

    def _state(self, index: int) -> LinearState:
        """The state of a layer without attention (`n_embd_r` and `n_embd_s`), all of it in 32 bits."""
        own = self._own
        if self._architecture in SHORT_CONVOLUTION:
            return _wide_state(0, 0, 0, self.hidden, own.integer("shortconv.l_cache", high=1 << 10))
        kernel = own.integer("ssm.conv_kernel", high=1 << 10)
        if self._architecture in KIMI_DELTA:
            heads, size = self.listed(HEADS, 0), own.integer("kda.head_dim", high=1 << 16)
            return _wide_state(heads, size, size, 3 * heads * size, kernel)
        inner, keys = (
            own.integer("ssm.inner_size", high=MOST_WIDTH),
            own.integer("ssm.state_size", high=1 << 16),
        )
        groups = own.integer_or(0, "ssm.group_count", high=1 << 16)
        # Of Mamba-1 the key has a rank, not heads: each channel is a head of its own.
        heads = own.integer("ssm.time_step_rank", high=1 << 16) if groups else inner
        if inner % heads:
            raise own.wrong("ssm.time_step_rank", f"a divisor of ssm.inner_size {inner}")
        channels = inner + 2 * groups * keys + self._ngram_channels(index, kernel)
        return _wide_state(heads, keys, inner // heads, channels, kernel)

    def _ngram_channels(self, index: int, kernel: int) -> int:
        """Channels that keep the history of Qwen4's n-gram embeddings, in the one layer that has them."""
        if index not in (self._own.integers("ple.layers", high=MOST_GGUF_LAYERS) or ()):
            return 0
        steps = self._own.integer("ple.conv_kernel", high=1 << 10) - 1
        rows = steps * self._own.integer("ple.ngram_size", high=1 << 10)
        streams = self._own.integer("hyper_connection.count", high=1 << 10)
        return -(-rows * streams * self.hidden // max(1, kernel - 1))

    def _attention(self, index: int) -> LayerGroup:
        slides = self._slides(index)
        window, suffix = (self._window(), "_swa") if slides else (None, "")
        heads, kv_heads = self.listed(HEADS, index), self._kv_heads(index)
        keys = self._dim("attention.key_length", suffix)
        if self._is_latent():
            rank = self._own.integer_or(keys, "attention.kv_lora_rank", high=MOST_WIDTH)
            return LayerGroup(
                kind=LayerKind.MLA,
                layers=1,
                query_heads=heads,
                kv_heads=kv_heads,
                key_dim=keys,
                prefill_dim=keys + rank,  # prefills attend to the latents as well
                **self._index(index),
            )
        return LayerGroup(
            kind=LayerKind.SLIDING if window is not None else LayerKind.FULL,
            layers=1,
            query_heads=heads,
            kv_heads=0 if self._reads_another(index) else kv_heads,
            key_dim=keys,
            value_dim=self._dim("attention.value_length", suffix),
            window=window,
            **self._index(index),
        )

    def _index(self, index: int) -> _Index:
        """The index keys of sparse attention; a layer that reuses another's selection has none, but reads as few tokens."""
        rows, own = INDEXED.get(self._architecture, 0), self._own
        if not rows or not own.integer_or(0, "attention.indexer.top_k"):
            return _NO_INDEX
        size, block = rows * own.integer("attention.indexer.key_length", high=1 << 16), 1
        if self._architecture == "minimax-m3":
            if index < own.integer_or(0, "leading_dense_block_count", high=MOST_GGUF_LAYERS):
                return _NO_INDEX
            block = own.integer("attention.indexer.block_size", high=1 << 16)
            size += self._dim("attention.value_length", "")  # its index cache has values, which are not used
        types = own.values.get("attention.indexer.types")
        reuses = isinstance(types, list) and types[index : index + 1] == [0]
        return _Index(
            index_dim=0 if reuses else size,
            index_bits=16,
            index_heads=own.integer_or(1, "attention.indexer.head_count", high=1 << 16),
            picked=block * own.integer("attention.indexer.top_k", high=1 << 24),
        )

    def _is_latent(self) -> bool:
        """True if one latent per token is cached; older files of DeepSeek have full keys and values instead."""
        sizes = (self._own.integer_or(0, f"attention.{key}_length_mla") for key in ("key", "value"))
        return self._architecture in LATENT and all(sizes)

    def _kv_heads(self, index: int) -> int:
        return self.listed(KV_HEADS if self._own.has(KV_HEADS) else HEADS, index)

    def _dim(self, key: str, suffix: str) -> int:
        found = self._own.integer_or_none(key + suffix, key, low=1, high=1 << 16) if suffix else None
        found = found or self._own.integer_or_none(key, low=1, high=1 << 16)
        if found is None:
            first = self.listed(HEADS, 0)
            found = self.hidden // first if first else 0
        if not found:
            raise self._own.missing(key)
        return found

    def _reads_another(self, index: int) -> bool:
        """The last layers of Gemma 3n and 4 E-models read the cache of an earlier one."""
        shared = self._own.integer_or(0, "attention.shared_kv_layers", high=MOST_GGUF_LAYERS)
        return index >= (
            SHARED_KV_FROM.get(self._architecture, self._every) if not shared else self._every - shared
        )

    def _slides(self, index: int) -> bool:
        rule = SLIDING.get(self._architecture)
        if rule is None and self._architecture not in SLIDING_LISTED:
            return self._architecture == "lfm2" and self._own.integer_or(0, WINDOW) > 0
        if self._architecture == "dflash" and not self._own.integer_or(0, WINDOW):
            return False
        if rule is not None and (not self._window_or_none() or rule.layers not in (0, self.count)):
            return False
        if isinstance(self._own.values.get(PATTERN), list):
            return bool(self._flags(PATTERN)[index])
        if rule is None:
            raise self._own.missing(PATTERN)
        period = self._own.integer_or(rule.period, PATTERN, high=MOST_GGUF_LAYERS)
        return period == 0 or (index % period != 0 if rule.full_first else index % period < period - 1)

    def _window_or_none(self) -> int | None:
        """The window in tokens; None or 0 if no layer slides."""
        rule = SLIDING.get(self._architecture)
        given = self._own.integer_or_none(WINDOW)
        if rule is None:
            return given
        return rule.window if given is None else given and (rule.always or given)

    def _window(self) -> int | None:
        """The window in tokens; None if it is not shorter than the model's context."""
        window = self._window_or_none()
        if not window:
            raise self._own.missing(WINDOW)
        most = self._own.integer_or_none("context_length", low=1)
        return None if most is not None and window >= most else window

    def _flags(self, key: str) -> tuple[int, ...]:
        """A list with a flag for each layer."""
        values = self._own.values.get(key)
        if not isinstance(values, list) or not all(value in (0, 1) for value in values):
            raise self._own.wrong(key, "a list of flags")
        per_layer(values, self.count, self._own, key)
        return tuple(map(int, values))


def _wide_state(heads: int, keys: int, values: int, channels: int, kernel: int) -> LinearState:
    return LinearState(
        heads=heads,
        key_dim=keys,
        value_dim=values,
        conv_channels=channels,
        conv_kernel=kernel,
        dtype="float32",
        conv_dtype="float32",
    )


def check_known(architecture: str, where: str) -> None:
    """Raises FactError for a name that cannot be an architecture."""
    if not architecture or len(architecture) > 64 or not architecture.isprintable():
        raise FactError(
            f"{where}: general.architecture is {shown(architecture)}.", do="Download the file again."
        )
