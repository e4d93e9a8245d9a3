"""Shape of a model for memory and speed: parameters and bits by part, with its layers (`layers.py`).

from_checkpoint    of the facts of a checkpoint: the only reader of shapes, for plans, for fitting, for `accuracy`
from_counts        guessed, if nothing but parameter counts is known (a drafter's name, a row of measurements)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from sparkfleet.checkpoints.arch.weight_parts import Part as CheckpointPart
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.perf.layers import Layers, layers_of
from sparkfleet.values import Value

PartKind = Literal["embedding", "head", "attention", "mlp", "experts", "shared", "vision", "mtp"]

BF16_BITS = 16.0


class ShapePart(Value):
    """One kind of weights. `params` counts all of it, `active` what one token passes through."""

    kind: PartKind
    params: float
    active: float
    bits: float = BF16_BITS
    """Bits per parameter as stored, scales included."""

    @property
    def bytes(self) -> float:
        """Size on disk and in memory, bytes."""
        return self.params * self.bits / 8


class ModelShape(Value):
    """A checkpoint as memory and speed see it."""

    name: str
    family: str = ""
    """Checkpoints of one family have equal shapes, whatever their format: see `shape_family`."""
    hidden: int
    vocab: int
    parts: tuple[ShapePart, ...]
    layers: Layers
    experts: int = 0
    top_k: int = 0
    vision: bool = False
    table_bytes: float = 0.0
    """Of the embedding: tables of n-grams, which an engine may read from the disk."""
    prompt_share: float = 1.0
    """Share of the layers that every token of a prompt has to pass; engines that skip the others: `prompt_tails`."""
    basis: str = "config"
    """Source of the shapes, e.g. "config.json" or "parameter counts"."""

    def part(self, kind: PartKind) -> ShapePart | None:
        """The part of that kind, or None."""
        return next((part for part in self.parts if part.kind == kind), None)

    def requantized(self, bits: Mapping[PartKind, float]) -> ModelShape:
        """The shapes as a build stores them that quantises parts while it loads: bits per weight by part.

        Parts that have fewer bits already keep theirs.
        """
        if not bits:
            return self
        parts = (
            part.model_copy(update={"bits": min(part.bits, bits.get(part.kind, part.bits))})
            for part in self.parts
        )
        return self.model_copy(update={"parts": tuple(parts)})

    @property
    def params(self) -> float:
        """Parameters in all."""
        return sum(part.params for part in self.parts)

    @property
    def active(self) -> float:
        """Parameters that one token passes through."""
        return sum(part.active for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of all weights."""
        return sum(part.bytes for part in self.parts)

    @property
    def moe(self) -> bool:
        """True if it has routed experts."""
        return self.experts > 0

    @property
    def kind(self) -> str:
        """Class of architecture for factors: dense or moe, and whether its attention is hybrid, sliding or latent."""
        mixing = "moe" if self.moe else "dense"
        if self.layers.linear:
            return f"{mixing}-hybrid"
        return f"{mixing}-sliding" if self.layers.sliding else mixing


GUESSED = (0.3, 1.0, 1.5)
"""Shapes that are not known but estimated from parameter counts: two models that were guessed so keep 0.31 of the estimate
(DeepSeek-V4.1-Flash, tonyd2wild) and 0.75 of it (Laguna-S-2.1, MiaAI-Lab)."""
PART_KINDS: Mapping[CheckpointPart, PartKind] = {
    CheckpointPart.ATTENTION: "attention",
    CheckpointPart.LINEAR_ATTENTION: "attention",
    CheckpointPart.MLP: "mlp",
    CheckpointPart.EXPERTS: "experts",
    CheckpointPart.SHARED_EXPERTS: "shared",
    CheckpointPart.ROUTER: "shared",
    CheckpointPart.NORMS: "shared",
    CheckpointPart.OTHER: "shared",
    CheckpointPart.EMBEDDING: "embedding",
    CheckpointPart.HEAD: "head",
    CheckpointPart.VISION: "vision",
    CheckpointPart.MTP: "mtp",
    CheckpointPart.DRAFT: "mtp",
}


def from_checkpoint(checkpoint: Checkpoint) -> ModelShape:
    """The facts of a checkpoint as memory and speed see them, with the bits in which engines hold it."""
    params: dict[PartKind, float] = defaultdict(float)
    active: dict[PartKind, float] = defaultdict(float)
    stored: dict[PartKind, float] = defaultdict(float)
    for portion in checkpoint.weights:
        kind = PART_KINDS[portion.part]
        params[kind] += portion.parameters
        active[kind] += portion.parameters * checkpoint.active_share(portion.part)
        stored[kind] += portion.loaded_bytes
    parts = [
        ShapePart(kind=kind, params=count, active=active[kind], bits=8 * stored[kind] / count)
        for kind, count in params.items()
        if count > 0
    ]
    embedding = next((part for part in parts if part.kind == "embedding"), None)
    # One matrix: stored as the embedding, read as the head. A draft may have neither, and use its target's.
    if checkpoint.tie_word_embeddings and embedding is not None:
        parts[parts.index(embedding)] = embedding.model_copy(update={"active": 0.0})
        parts.append(embedding.model_copy(update={"kind": "head", "params": 0.0}))
    shape = ModelShape(
        name=checkpoint.id,
        hidden=checkpoint.hidden_size,
        vocab=checkpoint.vocab_size,
        parts=tuple(parts),
        layers=layers_of(checkpoint),
        experts=checkpoint.experts,
        top_k=checkpoint.experts_per_token,
        # Quantisers may drop a declared tower: until the weights are read, it is taken to be there.
        vision=checkpoint.declares_vision if checkpoint.vision is None else checkpoint.vision,
        table_bytes=float(checkpoint.table_bytes),
        prompt_share=_prompt_share(checkpoint),
        basis="safetensors headers" if checkpoint.weights_known else "config.json",
    )
    return shape.model_copy(update={"family": shape_family(shape)})


def _prompt_share(checkpoint: Checkpoint) -> float:
    layers = sum(group.layers for group in checkpoint.layers)
    return 1.0 if checkpoint.prompt_layers is None else checkpoint.prompt_layers / max(1, layers)


def from_counts(
    name: str,
    total_b: float,
    active_b: float,
    *,
    family: str = "",
    notes: str = "",
    bits: float = BF16_BITS,
    basis: str = "parameter counts",
) -> ModelShape:
    """Shapes of a model of which only parameter counts (billions) are known, by the proportions that such models have.

    A dense 8B has 4096 × 34 layers, a 30B-A3B MoE 2048 × 48: width grows with the cube root of the active
    parameters, depth with the rest. `notes` may name "sliding", "gdn", "mamba", "mla" as benchmarks do.
    """
    moe = active_b < 0.8 * total_b
    scale = math.sqrt(total_b * active_b) if moe else total_b
    width = 64 * (scale / 8) ** 0.36 if not moe else 32 * (scale / 9.5) ** 0.4
    hidden, blocks = 64 * max(1, round(width)), max(4, round(34 * (scale / 8) ** 0.27))
    head = float(min(hidden * VOCABULARY, 0.3e9 * total_b))
    embedding = head if total_b > TIED_BELOW_B else 0.0
    rest = max(0.3e9 * active_b, active_b * 1e9 - head - (0.0 if moe else embedding))
    attention = (0.35 if moe else 0.25) * rest
    routed = rest - attention
    feed_forward = (
        ShapePart(
            kind="experts",
            params=max(routed, total_b * 1e9 - embedding - head - attention),
            active=routed,
            bits=bits,
        )
        if moe
        else ShapePart(kind="mlp", params=routed, active=routed, bits=bits)
    )
    return ModelShape(
        name=name,
        family=family or name,
        hidden=hidden,
        vocab=VOCABULARY,
        parts=(
            ShapePart(kind="embedding", params=embedding or head, active=0.0, bits=bits),
            ShapePart(kind="head", params=head if embedding else 0.0, active=head, bits=bits),
            ShapePart(kind="attention", params=attention, active=attention, bits=bits),
            feed_forward,
        ),
        layers=_guessed_layers(blocks, hidden, notes, moe=moe),
        experts=128 if moe else 0,
        top_k=max(1, round(128 * routed / feed_forward.params)) if moe else 0,
        basis=basis,
    )


VOCABULARY = 150_000
"""Tokens that a model knows of which that is not known; no more than 30 % of its parameters are taken to be its head."""
TIED_BELOW_B = 4.0
"""Billions of parameters up to which a model is taken to have one matrix for embedding and head."""


QUERIES_LATENT = 16.0
"""Elements of a token's queries and outputs over a latent layer's width: 12 (GLM-5.2: 64 heads of 576) to 21 (DeepSeek V3:
128)."""


def _guessed_layers(blocks: int, hidden: int, notes: str, *, moe: bool) -> Layers:
    """Layers of the kinds that the notes name, in the proportions that such models have."""
    hybrid = any(word in notes for word in ("gdn", "mamba", "linear", "conv", "kda"))
    full = max(1, round(blocks / 4)) if hybrid else blocks
    sliding = round(full * 0.8) if "sliding" in notes else 0
    kv_heads, width = (1, 576) if "mla" in notes or "csa" in notes else (8, 2 * 128 * (4 if moe else 8))
    return Layers(
        full=full - sliding,
        sliding=sliding,
        linear=blocks - full,
        moe=blocks if moe else 0,
        mlp=0 if moe else blocks,
        window=1024 if sliding else 0,
        kv_elements=float((full - sliding) * width),
        sliding_elements=float(sliding * width),
        state_bytes=(blocks - full) * hidden * 512.0,
        kv_heads=kv_heads,
        pool_factor=GUESSED,
        head_flops=4.0 * hidden * (full - sliding),
        window_flops=4.0 * hidden * sliding,
        query_elements=(full - sliding) * hidden * (QUERIES_LATENT if kv_heads == 1 else 2.0),
    )


def shape_family(shape: ModelShape) -> str:
    """A name for all checkpoints with the same shapes, e.g. "moe-hybrid-2048x40x256": width, layers, experts."""
    experts = f"x{shape.experts}" if shape.experts else ""
    return f"{shape.kind}-{shape.hidden}x{shape.layers.blocks}{experts}"
