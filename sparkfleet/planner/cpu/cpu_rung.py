"""A rung on the CPU: its candidate with the sizes that are assumed, and the memory of one rank. Pure."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.perf.prediction import Band, Prediction, Provenance, Speculation
from sparkfleet.planner.cpu.cpu_gguf import gguf_memory
from sparkfleet.planner.cpu.cpu_stacks import CpuStack
from sparkfleet.planner.place.gguf_drafts import gguf_draft
from sparkfleet.planner.rules.rule_facts import checkpoint_quant
from sparkfleet.planner.types.plan import Candidate, GroupShape, Rung
from sparkfleet.specs.deployment import Variant
from sparkfleet.units import GIB, MIB

DEFAULT_CONTEXT = 512
DEFAULT_CONCURRENCY = 8
DEFAULT_DRAFT_TOKENS = 3
KV_BYTES = 64 * MIB

MEMORY = Band(
    low=1.1 * GIB,
    mid=1.3 * GIB,
    high=1.8 * GIB,
    provenance=Provenance.CALIBRATED,
    basis="vLLM 0.32 CPU build, tiny checkpoints: 1.17 GiB of proportional set size, two processes",
)
"""Memory of one rank of vLLM; the checkpoint's few megabytes disappear in the band."""

SGLANG_MEMORY = Band(
    low=1.4 * GIB,
    mid=1.7 * GIB,
    high=2.2 * GIB,
    provenance=Provenance.CALIBRATED,
    basis="SGLang 0.5.23 on a CPU, tiny checkpoints: 1.61 GiB of proportional set size, four processes",
)
"""Memory of one rank of SGLang."""


class CpuWeights(NamedTuple):
    """Facts of the weights of a variant that is served from a directory."""

    model: Checkpoint | None = None
    draft: Checkpoint | None = None
    """Of the draft that its speculation names."""


NO_WEIGHTS = CpuWeights()


def rank_memory(variant: Variant, stack: CpuStack | None, weights: CpuWeights) -> Band:
    """Memory of one rank; None: of an engine that is not chosen yet."""
    if weights.model is not None and weights.model.gguf is not None:
        sizes = (variant.context or DEFAULT_CONTEXT, variant.concurrency or DEFAULT_CONCURRENCY)
        return gguf_memory(weights.model, *sizes, _speculation(variant), weights.draft)
    if stack is None:
        return MEMORY
    return SGLANG_MEMORY if stack.engine == "sglang" else MEMORY


def shape_of(variant: Variant, nodes: tuple[str, ...] = ()) -> GroupShape:
    """The split that the deployment sets, one rank without any, on these nodes."""
    wanted = variant.parallel
    if wanted is None:
        return GroupShape(nodes=nodes)
    return GroupShape(nodes=nodes, tp=wanted.tp or wanted.ep or 1, pp=wanted.pp or 1, ep=wanted.ep or 1)


def cpu_rung(variant: Variant, nodes: tuple[str, ...], stack: CpuStack, weights: CpuWeights) -> Rung:
    """The rung of a stack on nodes, a rank on each."""
    files = weights.model.gguf if weights.model is not None else None
    speculation = _speculation(variant)
    known = {} if weights.draft is None or speculation.draft is None else {speculation.draft: weights.draft}
    candidate = Candidate(
        model=variant.model,
        shape=shape_of(variant, nodes),
        engine=stack.engine,
        engine_version=stack.version,
        runtime="container" if stack.image else "process",
        python=stack.python,
        image=stack.image,
        speculation=speculation,
        context=variant.context or DEFAULT_CONTEXT,
        concurrency=variant.concurrency or DEFAULT_CONCURRENCY,
        device="cpu",
        dtype="float32" if files is None else "auto",
        quant="" if weights.model is None or files is None else checkpoint_quant(weights.model),
        kv_cache_bytes=KV_BYTES if files is None else None,
        gguf=files,
        gguf_draft=None if files is None else gguf_draft(speculation, known),
        engine_args=variant.engine_args,
        env=tuple(sorted(variant.env.items())),
        trust_remote_code=variant.trust_remote_code,
    )
    ranks = "one rank" if len(nodes) == 1 else f"{len(nodes)} ranks, set in the deployment"
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=rank_memory(variant, stack, weights)),
        reason=f"on the CPU: {'an image' if stack.image else 'the engine that is installed'}, {ranks}",
        notes=(f"unknown image: assumed to contain {candidate.stack}",) if stack.image else (),
    )


def _speculation(variant: Variant) -> Speculation:
    """Speculation of the deployment. Nothing is known of speculation on CPUs, so `auto` is none."""
    wanted = variant.speculation
    if wanted.method == "auto" or wanted.method == "none":  # noqa: PLR1714  # mypy narrows by these only
        return Speculation()
    return Speculation(method=wanted.method, tokens=wanted.tokens or DEFAULT_DRAFT_TOKENS, draft=wanted.draft)
