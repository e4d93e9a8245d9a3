"""Configuration that speed depends on, and the work of one step with it: bytes moved and FLOPs computed on each rank."""

from __future__ import annotations

from dataclasses import dataclass

from sparkfleet.knowledge.ceilings import LinkSpeed, physics
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.perf.engine_config import CHUNK, EngineConfig
from sparkfleet.perf.model_shape import BF16_BITS, ModelShape

DRAFT_LAYERS = 5
"""Layers of a DFlash or DSpark drafter (zai-org/GLM-5.3-Flash, deepseek-ai/DeepSeek-V4-Flash-DSpark)."""
DRAFT_BLOCK = 13
"""Parameters of one of them over its width squared: 4 of attention, 9 of an MLP three times as wide."""
EAGLE_BLOCK = 24
"""Parameters of an EAGLE-3 head's one layer over its width squared. It is dense, whatever its target is: 17 (Llama 3.3
70B) to 28 (gpt-oss, Qwen3-235B) by the configs of sgl-project/SpecForge; 23 and 28 by the sizes of RedHatAI's head for
Gemma 4 31B and lmsys's for gpt-oss-120b."""
EAGLE_VOCABULARY = 32_000
"""Tokens that it chooses from with a head of its own (`draft_vocab_size` of the same configs, vLLM's llama_eagle3.py)."""


class SpeedConfig(EngineConfig):
    """Engine configuration of a checkpoint as far as speed depends on it."""

    shape: ModelShape
    format: str
    """Key of `formats` in physics.yaml."""
    link: LinkSpeed | None = None
    kernel: str = ""
    """"marlin" if the format has no kernel of its own and weights are unpacked to bf16 on the way."""
    release: str = ""
    ray: bool = False
    """vLLM's ranks are driven by Ray (`--distributed-executor-backend ray`); plans have its own processes."""
    max_running: int | None = None
    """Most requests that run together; more wait."""
    draft_bytes: float | None = None
    """Bytes of a separate checkpoint that drafts one token after another with its target's KV cache (Gemma 4's
    assistants): each pass reads all of it, the embedding as its head. None: drafts are made as usual for the method."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Work of one step on each rank. A *step* decodes one token, or verifies k + 1, of each sequence.

    Weights in bytes as they are stored; a rank's own share of them, if they are split.
    """

    dense: float
    """Bytes that every step reads: attention, MLPs, shared experts, head."""
    experts: float
    """Bytes of all routed experts."""
    pick: float
    """Chance of one expert to be picked by one token, 0 to 1."""
    active: float
    """Parameters that one decoded token passes."""
    prompt: float
    """Parameters that each token of a prompt passes: all but the head, which is for the last one only."""
    prompt_share: float
    """Share of the layers that every token of a prompt passes, 0 to 1."""
    flops: float
    """FLOP/s of the format's matrix products, at most."""
    kv_token: float
    """Bytes of keys and values that a decode step reads per token of context, in the full layers."""
    kv_window: float
    """The same in the sliding layers, per token inside the window."""
    kv_draft: float
    """Bytes of keys and values that a drafter of one full layer keeps per token."""
    window: int
    """Tokens of the sliding layers' window."""
    state: float
    """Bytes of recurrent state that a step reads and writes per sequence."""
    blocks: int
    """Attention and feed-forward blocks: each ends with an all-reduce if weights are split."""
    linear: int
    """Layers with recurrent state."""
    moe: int
    """Layers with experts."""
    head: float
    """Bytes of the head."""
    layer: float
    """Bytes of the attention and the shared parts of one layer as the MTP part is stored; bf16 if that is not known."""
    drafted_experts: float
    """Bytes of all experts of one layer as the MTP part is stored."""
    block: float
    """Bytes of one layer of a dense drafter of that width in bf16, as they are published."""
    eagle: float
    """Bytes of an EAGLE-3 head that one of its passes reads, in bf16: its layer and its own head."""
    head_flops: float
    """FLOPs of attention per token of a prompt and token of its context, in the full layers."""
    window_flops: float
    """The same in the sliding layers."""
    hidden: int
    """Elements of one token between two layers."""
    ranks: int
    """Tensor parallelism."""
    pp: int
    """Pipeline stages."""
    routed: float
    """Parameters of routed experts that one token passes."""
    traffic: float
    """Bytes of activations that one token of a prefill moves."""
    scan: float
    """FLOPs of the linear layers' scan per token."""


def own_chunk(engine: str) -> int:
    """Tokens of one prefill chunk that an engine takes by itself; CHUNK if that is not known."""
    return physics().chunks.get(engine, CHUNK)


def prompt_share(setup: SpeedConfig) -> float:
    """Share of the layers that every token of a prompt passes: all of them unless the release is known to skip some."""
    since = physics().prompt_tails.get(setup.engine)
    if since is None or setup.shape.prompt_share == 1.0:
        return 1.0
    skips = parse_range(f">={since}").contains(setup.release) is Truth.YES
    return setup.shape.prompt_share if skips else 1.0


def costs(setup: SpeedConfig) -> Costs:
    """Work of one step of the setup on each rank: bytes moved and FLOPs computed."""
    shape, layers = setup.shape, setup.shape.layers
    dense = sum(
        p.active * p.bits / 8 for p in shape.parts if p.kind not in ("experts", "embedding", "vision", "mtp")
    )
    inner = sum(p.active for p in shape.parts if p.kind in ("attention", "mlp", "shared"))
    experts = shape.part("experts")
    head, mtp = shape.part("head"), shape.part("mtp")
    mtp_bits = mtp.bits if mtp else BF16_BITS
    split = min(setup.tp, layers.kv_heads)
    form = physics().formats[setup.format]
    compute = "bf16" if setup.kernel == "marlin" else form.compute
    share = prompt_share(setup)
    return Costs(
        dense=dense / setup.tp,
        experts=experts.bytes / max(setup.tp, setup.ep) if experts else 0.0,
        pick=shape.top_k / shape.experts if shape.experts else 0.0,
        active=shape.active / setup.tp,
        prompt=share * (shape.active - (head.active if head else 0.0)) / setup.tp,
        flops=physics().ceilings.flops(compute),
        kv_token=(layers.kv_elements if layers.read_elements is None else layers.read_elements)
        * setup.kv_bytes
        / (split * setup.dcp),
        kv_window=layers.sliding_elements * setup.kv_bytes / split,
        kv_draft=layers.kv_elements / max(1, layers.full) * setup.kv_bytes / split,
        window=layers.window or 1024,
        state=2 * layers.state_bytes / setup.tp,
        blocks=layers.blocks + layers.mixers,
        linear=layers.linear,
        moe=layers.moe,
        head=head.active * head.bits / 8 / setup.tp if head else 0.0,
        layer=mtp_bits / 8 * inner / setup.tp / max(1, layers.blocks),
        drafted_experts=mtp_bits / 8 * experts.params / max(setup.tp, setup.ep) / max(1, layers.moe)
        if experts
        else 0.0,
        block=2 * DRAFT_BLOCK * shape.hidden**2 / setup.tp,
        eagle=2 * (EAGLE_BLOCK * shape.hidden + min(EAGLE_VOCABULARY, shape.vocab)) * shape.hidden / setup.tp,
        prompt_share=share,
        head_flops=layers.head_flops / setup.tp,
        window_flops=layers.window_flops / setup.tp,
        hidden=shape.hidden,
        ranks=setup.tp,
        pp=setup.pp,
        routed=experts.active / setup.tp if experts else 0.0,
        traffic=2.0
        * (
            8 * shape.hidden * layers.blocks
            + 2 * shape.hidden * shape.top_k * layers.moe
            + shape.active / shape.hidden / setup.tp
        ),
        scan=layers.state_bytes / setup.tp,
    )
