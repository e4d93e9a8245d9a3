"""From what is asked for and what is true to what will be done, with reasons. Pure.

This version plans the embedded engine: TP=1, as a process, on a node without a GPU. Everything else it rejects, and says
that it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkfleet.errors import Infeasible
from sparkfleet.facts.node import NodeFacts
from sparkfleet.planning.plan import (
    Band,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    Prediction,
    Provenance,
    Rejection,
    Rung,
    Shape,
)
from sparkfleet.spec.deployment import Deployment, Variant

GIB = 1 << 30
MIB = 1 << 20

DEFAULT_CONTEXT = 512
DEFAULT_CONCURRENCY = 8
EMBEDDED_KV_BYTES = 64 * MIB

EMBEDDED_MEMORY = Band(
    low=1.1 * GIB,
    mid=1.3 * GIB,
    high=1.8 * GIB,
    provenance=Provenance.CALIBRATED,
    basis="vLLM 0.32 CPU build, tiny checkpoints: 1.17 GiB of proportional set size, two processes",
)
"""Memory of one embedded engine; the checkpoint's few megabytes disappear in the band."""


def plan_deployment(
    spec: Deployment, nodes: Sequence[NodeFacts], held: Mapping[str, int] | None = None
) -> DeploymentPlan:
    """Choose how to serve `spec` on `nodes`.

    Args:
        spec: what is asked for.
        nodes: facts of the nodes that may be used.
        held: bytes per node that this deployment's own running groups will give back, by node name.

    Raises:
        Infeasible: no candidate is left; the message carries every rejection.
    """
    variant = spec.resolved()[0]
    rungs: list[Rung] = []
    rejected: list[Rejection] = list(_unplanned(spec))
    for node in nodes:
        if variant.nodes and node.name not in variant.nodes:
            rejected.append(
                Rejection(what=f"node {node.name}", reason="not among the nodes that the deployment names")
            )
            continue
        refusal = _refusal(variant, node, (held or {}).get(node.name, 0))
        if refusal:
            rejected.append(refusal)
        else:
            rungs.append(_rung(variant, node))
    if not rungs:
        raise _infeasible(spec, rejected)
    groups = tuple(GroupPlan(ladder=tuple(rungs)) for _ in range(variant.replicas or 1))
    return DeploymentPlan(name=spec.name, objective=spec.objective, groups=groups, rejected=tuple(rejected))


def _unplanned(spec: Deployment) -> Iterator[Rejection]:
    for variant in spec.resolved()[1:]:
        yield Rejection(what=f"variant {variant.model}", reason="this version serves the first variant only")


def _refusal(variant: Variant, node: NodeFacts, held: int) -> Rejection | None:
    """Why `variant` cannot run on `node`, or None. Checked in the order in which a person would ask."""
    what = f"{node.name} · TP=1"
    if node.gpu is not None:
        return Rejection(
            what=what, reason=f"{node.gpu.name}: this version plans only the embedded CPU engine"
        )
    if not variant.model.startswith(("builtin:", "/")):
        return Rejection(
            what=what, reason=f"{variant.model} is not on this node, and this version does not fetch weights"
        )
    if variant.engine not in ("auto", "vllm"):
        return Rejection(
            what=what, reason=f"engine {variant.engine} has no CPU build that this version can launch"
        )
    if variant.runtime == "container" or variant.image:
        return Rejection(what=what, reason="this version runs engines as processes only")
    return _parallel_refusal(variant, what) or _engine_refusal(variant, node, what, held)


def _parallel_refusal(variant: Variant, what: str) -> Rejection | None:
    wanted = variant.parallel
    if wanted is not None and any((degree or 1) > 1 for degree in (wanted.tp, wanted.pp, wanted.ep)):
        return Rejection(
            what=what, reason="a node without a GPU holds one rank; TP, PP and EP above 1 are not planned"
        )
    if variant.speculation.method not in ("auto", "none"):
        return Rejection(
            what=what, reason=f"speculation {variant.speculation.method} is not planned by this version"
        )
    return None


def _engine_refusal(variant: Variant, node: NodeFacts, what: str, held: int) -> Rejection | None:
    home = node.engines.get("vllm")
    if home is None:
        return Rejection(
            what=what, reason='vLLM is not installed; `pip install "sparkfleet[local]"` brings it'
        )
    if "cpu" not in home.version:
        return Rejection(what=what, reason=f"vLLM {home.version} needs a GPU, and this node has none")
    need, free = EMBEDDED_MEMORY.high * (variant.replicas or 1), node.memory.available + held
    if need > free:
        return Rejection(
            what=what, reason=f"needs {need / GIB:.1f} GiB, and {free / GIB:.1f} GiB are available"
        )
    return None


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
        kv_cache_bytes=EMBEDDED_KV_BYTES,
        engine_args=variant.engine_args,
        env=tuple(sorted(variant.env.items())),
    )
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=EMBEDDED_MEMORY),
        reason="no GPU here: the embedded engine, one rank",
    )


def _infeasible(spec: Deployment, rejected: Sequence[Rejection]) -> Infeasible:
    reasons = "\n".join(f"  {r.what}: {r.reason}" for r in rejected)
    return Infeasible(
        f"{spec.name}: nothing in this fleet can serve {spec.resolved()[0].model}.",
        means=f"Rejected:\n{reasons}",
        do="Change the deployment or the inventory where a reason says so, then `sparkfleet plan` again.",
    )
