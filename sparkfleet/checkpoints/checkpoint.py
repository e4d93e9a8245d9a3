"""Facts of a checkpoint: its architecture, sizes and defaults, as a value.

Sizes are estimates if `weights_known` is false; then the presence of a vision tower or an MTP head is not known either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from sparkfleet.checkpoints.arch.feed_forward import FeedForwardWidths
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames, Portion
from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.checkpoints.io.licenses import License
from sparkfleet.checkpoints.quantization.formats import Quantization
from sparkfleet.checkpoints.quantization.named_quantization import named_quantization
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.checkpoints.sizes.size_estimate import (
    LEFT_OVER,
    estimated_portions,
    resized,
)
from sparkfleet.values import Value

K = TypeVar("K")

BESIDE_THE_MODEL = (Part.MTP, Part.DRAFT)
"""Parts that only draft tokens; they are not counted in the size that a model is known by."""

NOT_READ_PER_TOKEN = (*BESIDE_THE_MODEL, Part.VISION)
NGRAM_TABLES = ("qwen4_exp", "deepseek_v41")
"""Types of models whose layers look n-grams up in tables (vLLM, config/engram.py)."""


class Sampling(Value):
    """Sampling defaults of `generation_config.json`, which engines use if a request sets none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class Checkpoint(Value):
    """A set of weights, or the config of one."""

    id: str
    """Hub id, or directory."""
    revision: str | None = None
    origin: str = ""
    """Source of the sizes, for people; "" if they come from files on this machine or a node, or are known by name."""
    path: Path | None = None
    """None if only a config is known."""
    architectures: tuple[str, ...]
    model_type: str
    weights_known: bool
    """False: sizes are estimated from the config."""
    bytes_on_disk: int
    """Bytes of the weight files."""
    largest_file: int | None = None
    """Bytes of the largest weight file; None if the files are not known."""
    weights: tuple[Portion, ...]
    """Everything that an engine loads, by part and format."""
    unsized: tuple[Part, ...] = ()
    """Parts that the config declares without their size; empty if the weights are known."""
    layers: tuple[LayerGroup, ...]
    """Decoder layers, in groups of equal ones."""
    moe_layers: int = 0
    """Layers whose feed-forward is a mixture of experts."""
    dense_layers: int = 0
    """Layers with a feed-forward and no experts."""
    prompt_layers: int | None = None
    """Decoder layers that every token of a prompt passes; None: all. DeepSeek V4.1 has others, which keep no latents."""
    hidden_size: int
    vocab_size: int
    max_positions: int | None
    """Longest context of the model, tokens; None if the config does not declare it."""
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    widths: FeedForwardWidths | None = None
    """Widths of its feed-forwards; None if the config does not declare them, or the architecture is not known."""
    vision: bool | None
    """True if the weights include a vision tower; None if they are not known."""
    declares_vision: bool
    mtp_layers: int | None
    """Layers of multi-token prediction (MTP, NEXTN) among the weights; None if they are not known."""
    declared_mtp_layers: int
    dspark_block: int | None = None
    """Draft tokens of a block of the DSpark stages in its own weights, by its config; None if it declares none."""
    draft_block: int | None = None
    """Tokens that a drafter of this kind drafts at once (its block), by its config; None if it is no such drafter."""
    gguf: GgufFiles | None = None
    """The files of a checkpoint in GGUF format; None for any other."""
    chat_template: bool | None = None
    """True if its GGUF file has a chat template; None for other formats, in which it is not read."""
    quantization: Quantization | None = None
    dtype: str
    """Precision of the weights that are not quantised: "bfloat16", "float16" or "float32"."""
    tie_word_embeddings: bool
    needs_remote_code: bool
    """The config refers to Python files of its own (`auto_map`), for engines that do not know the architecture."""
    license: License = License()
    sampling: Sampling = Sampling()

    def parameters_by_part(self) -> dict[Part, int]:
        """Parameters of each part that the model has."""
        return _summed((portion.part, portion.parameters) for portion in self.weights)

    def bytes_by_part(self) -> dict[Part, int]:
        """Bytes of each part that the model has, scales included."""
        return _summed((portion.part, portion.bytes) for portion in self.weights)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of all weights as engines hold them: those of 32 bits in 16."""
        return sum(portion.loaded_bytes for portion in self.weights)

    @property
    def total_parameters(self) -> int:
        """Parameters as a model's size is usually given: all but MTP and draft heads."""
        return sum(p.parameters for p in self.weights if p.part not in BESIDE_THE_MODEL)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token of text is multiplied with, without the one row of the embedding that it reads."""
        return round(sum(p.parameters * self.active_share(p.part) for p in self.weights))

    @property
    def active_bytes(self) -> int:
        """Bytes of weights that one token of text reads, as engines hold them."""
        return round(sum(p.loaded_bytes * self.active_share(p.part) for p in self.weights))

    def active_share(self, part: Part) -> float:
        """The share of a part that one token of text reads; a tied embedding is read completely, as the head.

        A token reads one row of each further lookup table (the per-layer embeddings of Gemma's E-models).
        """
        if part in NOT_READ_PER_TOKEN:
            return 0.0
        if part is Part.EMBEDDING:
            tables = sum(portion.parameters for portion in self.weights if portion.part is part)
            head = self.vocab_size * self.hidden_size
            return min(1.0, head / max(1, tables)) if self.tie_word_embeddings else 0.0
        return self.experts_per_token / self.experts if part is Part.EXPERTS and self.experts else 1.0

    @property
    def table_bytes(self) -> int:
        """Bytes of the n-gram tables beside the embedding, of which a token reads a few rows; 0 if there are none."""
        if self.model_type not in NGRAM_TABLES:
            return 0
        found = sorted(
            (one for one in self.weights if one.part is Part.EMBEDDING),
            key=lambda one: -one.bytes / max(1, one.parameters),
        )
        left, size = self.vocab_size * self.hidden_size, sum(one.bytes for one in found)
        for one in found:  # the embedding itself is stored with the most bits
            taken = min(left, one.parameters)
            left -= taken
            size -= round(one.bytes * taken / max(1, one.parameters))
        return max(0, size)

    def layer_counts(self) -> dict[LayerKind, int]:
        """Decoder layers by kind."""
        return _summed((group.kind, group.layers) for group in self.layers)

    def kv_dtype(self, dtype: str = "auto") -> str:
        """The KV cache dtype; "auto" is the dtype that the checkpoint has scales for, or else 16 bits."""
        if dtype != "auto":
            return dtype
        return (self.quantization.kv_cache if self.quantization else None) or "bf16"

    def kv_bytes_per_token(self, *, tp: int = 1, dtype: str = "auto", kind: LayerKind | None = None) -> float:
        """Bytes that one token adds to the KV cache of one rank while no window is full, in all layers or those of a kind.

        KV heads are copied if `tp` exceeds their number; a latent (MLA) is stored completely on every rank.

        Raises:
            FactError: an unknown dtype.
        """
        name = self.kv_dtype(dtype)
        chosen = (group for group in self.layers if kind is None or group.kind is kind)
        return sum(group.layers * group.token_bytes(tp=tp, dtype=name) for group in chosen)

    def state_bytes_per_sequence(self, *, tp: int = 1, dtype: str | None = None) -> int:
        """Bytes of recurrent and convolution state of one sequence on one rank, in all linear layers.

        Args:
            tp: ranks that share the heads.
            dtype: of the recurrent state; None: the checkpoint's own.
        """
        states = ((group.layers, group.state) for group in self.layers if group.state is not None)
        return sum(layers * state.bytes(tp=tp, dtype=dtype) for layers, state in states)

    def sized(self, total: float, *, evenly: bool = False) -> Checkpoint:
        """The same weights with `total` bytes altogether.

        The parts that quantisers treat in different ways change first, because the rest of a published size shows how they
        are stored; if that gives no precision that exists, all parts change, as they do if `evenly` is set.
        """
        weights = resized(self.weights, total, soft=() if evenly else LEFT_OVER)
        return self.model_copy(
            update={"weights": weights, "bytes_on_disk": sum(portion.bytes for portion in weights)}
        )

    def requantized(self, name: str) -> Checkpoint:
        """The same model as it would be in another quantisation ("nvfp4", "fp8", "awq", …), sizes estimated.

        Raises:
            FactError: an unknown quantisation.
        """
        parameters = self.parameters_by_part()
        members = {part: frozenset({0}) for part in LAYER_PARTS if parameters.get(part)}
        quantization = named_quantization(name, Scope(PartNames(1), members))
        weights = estimated_portions(parameters, quantization, self.dtype)
        size = sum(portion.bytes for portion in weights)
        changes = {
            "quantization": quantization,
            "weights": weights,
            "bytes_on_disk": size,
            "weights_known": False,
        }
        return self.model_copy(update={**changes, "path": None, "vision": None, "mtp_layers": None})


def _summed(pairs: Iterable[tuple[K, int]]) -> dict[K, int]:
    sums: Counter[K] = Counter()
    for key, value in pairs:
        sums[key] += value
    return dict(sums)
