"""Planning for nodes without a GPU: the embedded engine, one rank, as a process. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.facts.node import NodeFacts
from sparkfleet.planning.pack import Ledger
from sparkfleet.planning.plan import Band, Candidate, Prediction, Provenance, Rejection, Rung, Shape, Why
from sparkfleet.spec.deployment import Variant

GIB = 1 << 30
MIB = 1 << 20

DEFAULT_CONTEXT = 512
DEFAULT_CONCURRENCY = 8
KV_BYTES = 64 * MIB

MEMORY = Band(
    low=1.1 * GIB,
    mid=1.3 * GIB,
    high=1.8 * GIB,
    provenance=Provenance.CALIBRATED,
    basis="vLLM 0.32 CPU build, tiny checkpoints: 1.17 GiB of proportional set size, two processes",
)
"""Memory of one embedded engine; the checkpoint's few megabytes disappear in the band."""


def embedded_rungs(
    variant: Variant, nodes: Sequence[NodeFacts], ledger: Ledger
) -> tuple[list[Rung], list[Rejection]]:
    """A rung per node that can run the embedded engine, and why the others cannot."""
    rungs: list[Rung] = []
    rejected: list[Rejection] = []
    for node in nodes:
        refusal = _refusal(variant, node, ledger)
        if refusal is None:
            rungs.append(_rung(variant, node))
        else:
            rejected.append(refusal)
    return rungs, rejected


def _refusal(variant: Variant, node: NodeFacts, ledger: Ledger) -> Rejection | None:
    """Why `variant` cannot run on `node`, or None. Checked in the order in which a person would ask."""
    if variant.nodes and node.name not in variant.nodes:
        return _no(node, "not among the nodes that the deployment names", "wanted")
    if not variant.model.startswith(("builtin:", "/")):
        return _no(
            node, f"{variant.model} is not on this node, and a node without a GPU does not fetch weights"
        )
    if variant.engine not in ("auto", "vllm"):
        return _no(node, f"engine {variant.engine} has no CPU build that can be launched")
    if variant.runtime == "container" or variant.image:
        return _no(node, "on a node without a GPU engines run as processes only")
    return _parallel_refusal(variant, node) or _engine_refusal(variant, node, ledger)


def _parallel_refusal(variant: Variant, node: NodeFacts) -> Rejection | None:
    wanted = variant.parallel
    if wanted is not None and any((degree or 1) > 1 for degree in (wanted.tp, wanted.pp, wanted.ep)):
        return _no(
            node, "a node without a GPU holds one rank; TP, PP and EP above 1 are not planned", "wanted"
        )
    if variant.speculation.method not in ("auto", "none"):
        return _no(node, f"speculation {variant.speculation.method} is not planned without a GPU", "wanted")
    return None


def _engine_refusal(variant: Variant, node: NodeFacts, ledger: Ledger) -> Rejection | None:
    home = node.engines.get("vllm")
    if home is None:
        return _no(node, 'vLLM is not installed; `pip install "sparkfleet[local]"` brings it')
    if "cpu" not in home.version:
        return _no(node, f"vLLM {home.version} needs a GPU, and this node has none")
    need, free = MEMORY.high * (variant.replicas or 1), ledger.room(node.name).at_most
    if need > free:
        return _no(node, f"needs {need / GIB:.1f} GiB, and {free / GIB:.1f} GiB are available", "memory")
    return None


def _no(node: NodeFacts, reason: str, why: Why = "engine") -> Rejection:
    return Rejection(what=f"{node.name} · TP=1", reason=reason, why=why)


def _rung(variant: Variant, node: NodeFacts) -> Rung:
    home = node.engines["vllm"]
    candidate = Candidate(
        model=variant.model,
        shape=Shape(nodes=(node.name,)),
        engine="vllm",
        engine_version=home.version,
        python=home.python,
        context=variant.context or DEFAULT_CONTEXT,
        concurrency=variant.concurrency or DEFAULT_CONCURRENCY,
        device="cpu",
        dtype="float32",
        kv_cache_bytes=KV_BYTES,
        engine_args=variant.engine_args,
        env=tuple(sorted(variant.env.items())),
    )
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=MEMORY),
        reason="no GPU here: the embedded engine, one rank",
    )
