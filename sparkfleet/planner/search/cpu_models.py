"""Planning for engines that run on CPUs: the embedded models, and nodes without a GPU. Pure.

They run as processes of an engine that is installed on a node, or in containers of the image that the deployment names:
no image of a CPU build is known by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.engines.engine_flags import flag_faults
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.prediction import Band, Prediction, Provenance, Speculation
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.place.gguf_drafts import gguf_draft
from sparkfleet.planner.rules.rule_facts import checkpoint_quant
from sparkfleet.planner.search.constraints import open_ring, wanted
from sparkfleet.planner.search.cpu_gguf import for_llama_cpp, gguf_memory, gguf_misfit
from sparkfleet.planner.types.embedded_model import EmbeddedModel
from sparkfleet.planner.types.plan import Candidate, GroupPlan, GroupShape, Rejection, Rung, Why
from sparkfleet.specs.deployment import Deployment, EngineName, Method, Variant
from sparkfleet.units import GIB, MIB, gib

DEFAULT_CONTEXT = 512
DEFAULT_CONCURRENCY = 8
GPU_DRAFTS = ("dflash2", "dspark")
"""Methods that vLLM 0.32 has in its model runner V2 only, which needs Triton (docs/builtin.md)."""
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

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang")
"""Engines that have CPU builds, in the order in which `auto` takes them."""

OWN_HEAD: tuple[Method, ...] = ("mtp", "nextn")
"""Methods whose head is in the model's own checkpoint."""
NEEDS_DRAFT: tuple[Method, ...] = ("draft", "eagle3", "dflash", "dflash2", "dspark")
"""Methods whose draft is a checkpoint of its own. For CPUs none is known by itself."""

SUPPOSED = {"vllm": "0.32.0+cpu", "sglang": "0.5.23+cpu"}
"""Versions assumed inside an image if no node has a CPU build of that engine: those that sparkfleet was tested with."""


class CpuWeights(NamedTuple):
    """Facts of the weights of a variant that is served from a directory."""

    model: Checkpoint | None = None
    draft: Checkpoint | None = None
    """Of the draft that its speculation names."""


NO_WEIGHTS = CpuWeights()


def takes(variant: Variant, fleet: Fleet) -> bool:
    """True if a variant is planned here: an embedded model, or a fleet in which no node's GPU could be used for it."""
    return variant.model.startswith("builtin:") or not any(uses_gpu(node) for node in fleet.nodes)


WHERE = (
    "fits on a node with vLLM's CPU build alone (`sparkfleet[local]`), such as this machine: `address: local`"
)
"""The next step if every node's engines run on its GPU."""


def uses_gpu(node: NodeFacts) -> bool:
    """True if engines on a node run on its GPU. They do not if all that are installed are CPU builds."""
    builds = [home.version for home in node.engines.values()]
    return node.gpu is not None and not (builds and all("cpu" in version for version in builds))


def embedded_groups(
    name: str,
    number: int,
    variant: Variant,
    fleet: Fleet,
    ledger: MemoryLedger,
    *,
    runs_on: Sequence[tuple[str, ...]] = (),
    weights: CpuWeights = NO_WEIGHTS,
) -> tuple[list[GroupPlan], list[Rejection]]:
    """A group per replica, and why other nodes are not used. Places them on the ledger.

    Args:
        name: the deployment's.
        number: which of its variants this is.
        variant: what is asked for.
        fleet: the nodes.
        ledger: what is left of their memory.
        runs_on: nodes of its groups that run now, which stay there if they can.
        weights: facts of a directory's weights, and of its draft's; an embedded model has none.
    """
    variant = for_llama_cpp(variant, weights.model)
    if reason := gguf_misfit(variant, weights.model):
        return [], [wanted(variant.model.rpartition("/")[2], reason)]
    able: list[NodeFacts] = []
    rejected: list[Rejection] = []
    for node in fleet.nodes:
        refusal = _refusal(variant, node, ledger, weights)
        if refusal is None:
            able.append(node)
        else:
            rejected.append(refusal)
    groups: list[GroupPlan] = []
    for replica in range(variant.replicas or 1):
        prefer = runs_on[replica] if replica < len(runs_on) else ()
        rungs = _rungs(
            variant, fleet.model_copy(update={"nodes": tuple(able)}), ledger, prefer, weights=weights
        )
        if not rungs:
            for group in groups:
                choice = group.choice
                ledger.take_back(
                    name, choice.candidate.shape.nodes, choice.prediction.memory_bytes_per_rank.mid
                )
            need = _memory(variant, None, weights)
            return [], [*rejected, *_no_site(variant, fleet, able, len(groups), need)]
        chosen = rungs[0]
        ledger.put(name, chosen.candidate.shape.nodes, chosen.prediction.memory_bytes_per_rank.mid)
        groups.append(GroupPlan(ladder=tuple(rungs), variant=number))
    return groups, rejected


def misfit(spec: Deployment, variant: Variant, fleet: Fleet, model: EmbeddedModel | None) -> Rejection | None:
    """Reason that excludes a deployment from every CPU: its model, its method or its engine cannot do what it sets.

    Args:
        spec: the deployment.
        variant: one of its variants.
        fleet: the nodes, for the versions of their engines.
        model: what is known of the model; None if nothing is.
    """
    name = variant.model.rpartition("/")[2]
    if variant.kv_disk is not None:
        return wanted(
            "kv_disk", "vLLM keeps KV on the disk from a GPU only; leave it out for engines on the CPU"
        )
    if variant.parallel is not None and (variant.parallel.dcp or 1) > 1:
        return wanted(
            "parallel",
            "the CPU attention of vLLM cannot join parts of a KV cache: `dcp` is for engines on a GPU; leave it out",
        )
    if model is not None:
        words = _lacks(spec, variant, model)
        if words:
            return wanted(name, words)
    words = _draft_missing(variant) or _flag_fault(variant, fleet)
    return (
        wanted("engine_args" if words.startswith(tuple(_LABELS.values())) else name, words) if words else None
    )


def _lacks(spec: Deployment, variant: Variant, model: EmbeddedModel) -> str:
    if not model.weights:
        return "the directory has a config and no weights"
    if variant.context is not None and model.positions is not None and variant.context > model.positions:
        return f"supports at most {model.positions} tokens, but the deployment sets a context of {variant.context}"
    if "vision" in spec.needs and model.vision is False:
        return "it has no vision tower, but the deployment needs vision"
    method = variant.speculation.method
    own_head = method in OWN_HEAD and variant.speculation.draft is None
    if own_head and model.heads is not None and method not in model.heads:
        return f"its checkpoint has no head for {method.upper()}; `speculation: none` or `ngram` needs none"
    return ""


def _draft_missing(variant: Variant) -> str:
    method = variant.speculation.method
    if method in NEEDS_DRAFT and variant.speculation.draft is None:
        return f"{method.upper()} needs a draft: `speculation: {{method: {method}, draft: CHECKPOINT}}`"
    return ""


def _flag_fault(variant: Variant, fleet: Fleet) -> str:
    """The first flag or value that no node's engine takes."""
    stacks = {
        (found.engine, found.version) for node in fleet.nodes if (found := _stack(variant, fleet.nodes, node))
    }
    if len(stacks) != 1:
        return ""
    ((engine, version),) = stacks
    faults = flag_faults(engine, version, parse_flags(variant.engine_args))
    return next((one.words(engine, version) for one in faults if one.certain), "")


def _refusal(
    variant: Variant, node: NodeFacts, ledger: MemoryLedger, weights: CpuWeights
) -> Rejection | None:
    """Reason why `variant` cannot run on `node`, or None. Checked in the order in which a person would look."""
    if variant.nodes and node.name not in variant.nodes:
        return _no(variant, node, "not among the nodes that the deployment names", "wanted")
    if uses_gpu(node):
        gpu = node.gpu.name if node.gpu else ""
        return _no(variant, node, f"{gpu}: the embedded models run on CPUs only")
    if not variant.model.startswith(("builtin:", "/")):
        return _no(
            variant,
            node,
            f"{variant.model} is not on this node, and nodes without a GPU download no weights",
        )
    if variant.engine not in ("auto", *ENGINES, "llama.cpp"):
        return _no(variant, node, f"engine {variant.engine} has no CPU build that can be launched")
    return _stack_refusal(variant, node, ledger, weights)


def _stack_refusal(
    variant: Variant, node: NodeFacts, ledger: MemoryLedger, weights: CpuWeights
) -> Rejection | None:
    stack = _stack(variant, (node,), node)
    if stack is None:
        return _no(variant, node, _lack(variant, node))
    if stack.engine == "sglang" and variant.speculation.method not in ("auto", "none"):
        return _no(
            variant, node, "SGLang's speculative kernels are built for CUDA only; vLLM's CPU build has them"
        )
    if variant.speculation.method in GPU_DRAFTS and stack.engine == "vllm":
        method = variant.speculation.method.upper()
        return _no(variant, node, f"vLLM's CPU build refuses {method}: only its model runner for GPUs has it")
    free, needed = ledger.room(node.name).at_most, _memory(variant, stack, weights).high
    if needed > free:
        words = f"needs {gib(needed, exact=True)}; {gib(free, exact=True)} are available"
        return _no(variant, node, words, "memory")
    return None


def _lack(variant: Variant, node: NodeFacts) -> str:
    """Reason for having no stack."""
    if variant.image:
        return f"{variant.image} needs a GPU, and this node has none"
    if variant.runtime == "container":
        return "no image of a CPU build is known: set `image`, or leave out `runtime: container`"
    wanted = "vllm" if variant.engine == "auto" else variant.engine
    version = node.engines[wanted].version if wanted in node.engines else ""
    if wanted == "llama.cpp":
        return "llama.cpp is not installed: sparkfleet looks for `llama-server` beside the environment's interpreter"
    if version:
        return f"{wanted} {version} needs a GPU, and this node has none"
    remedy = '; `pip install "sparkfleet[local]"` brings it' if wanted == "vllm" else ""
    return f"{_LABELS[wanted]} is not installed{remedy}"


_LABELS = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp"}


class _Stack(NamedTuple):
    """Stack of an engine: an environment of the node, or an image, with a Python of its own."""

    engine: EngineName
    version: str
    python: str = "python3"
    image: str | None = None


def _stack(variant: Variant, nodes: Sequence[NodeFacts], node: NodeFacts) -> _Stack | None:
    """Stacks that can run on a node; all `nodes` are consulted for the version of an assumed image."""
    if variant.image or variant.runtime == "container":
        return _in_image(variant, nodes)
    return next(_installed(variant, (node,)), None)


def _installed(variant: Variant, nodes: Sequence[NodeFacts]) -> Iterator[_Stack]:
    for engine in ENGINES if variant.engine == "auto" else (variant.engine,):
        for node in nodes:
            home = node.engines.get(engine)
            if home is not None and ("cpu" in home.version or engine == "llama.cpp"):
                yield _Stack(engine, home.version, home.python)


def _in_image(variant: Variant, nodes: Sequence[NodeFacts]) -> _Stack | None:
    """Device of an image. Every known image is built for GPUs."""
    if variant.image is None or images_of(variant.image):
        return None
    if variant.engine == "llama.cpp":
        return _Stack("llama.cpp", "", image=variant.image)
    named = next((engine for engine in ENGINES if engine in variant.image.lower()), ENGINES[0])
    engine = named if variant.engine == "auto" else variant.engine
    installed = _installed(variant.model_copy(update={"engine": engine}), nodes)
    version = next((stack.version for stack in installed), SUPPOSED[engine])
    return _Stack(engine, version, image=variant.image)


def _memory(variant: Variant, stack: _Stack | None, weights: CpuWeights) -> Band:
    """Memory of one rank; None: of an engine that is not chosen yet."""
    if weights.model is not None and weights.model.gguf is not None:
        sizes = (variant.context or DEFAULT_CONTEXT, variant.concurrency or DEFAULT_CONCURRENCY)
        return gguf_memory(weights.model, *sizes, _speculation(variant), weights.draft)
    if stack is None:
        return MEMORY
    return SGLANG_MEMORY if stack.engine == "sglang" else MEMORY


def _rungs(
    variant: Variant,
    fleet: Fleet,
    ledger: MemoryLedger,
    prefer: Sequence[str] = (),
    *,
    weights: CpuWeights = NO_WEIGHTS,
) -> list[Rung]:
    """Places for one more group, `prefer` first. Of single nodes any will do, in the order of the inventory."""
    ranks = _shape(variant, ()).ranks
    stacks = {node.name: found for node in fleet.nodes if (found := _stack(variant, fleet.nodes, node))}
    if ranks == 1:
        free = [
            name
            for name, stack in stacks.items()
            if ledger.room(name).at_most >= _memory(variant, stack, weights).high
        ]
        free.sort(
            key=lambda name: (name not in prefer, len(ledger.beside((name,))))
        )  # replicas on different nodes
        return [_rung(variant, (name,), stacks[name], weights) for name in free]
    rungs = [
        _rung(variant, nodes, stack, weights)
        for stack in dict.fromkeys(stacks.values())  # all ranks get the same command: one engine, at one path
        for pool in fleet.pools(ranks, [name for name, its in stacks.items() if its == stack])
        if (nodes := ledger.place(pool, _memory(variant, stack, weights), prefer)) is not None
    ]
    return sorted(rungs, key=lambda rung: rung.candidate.shape.nodes != tuple(prefer))


def _shape(variant: Variant, nodes: tuple[str, ...]) -> GroupShape:
    wanted = variant.parallel
    if wanted is None:
        return GroupShape(nodes=nodes)
    return GroupShape(nodes=nodes, tp=wanted.tp or wanted.ep or 1, pp=wanted.pp or 1, ep=wanted.ep or 1)


def _no_site(
    variant: Variant, fleet: Fleet, able: Sequence[NodeFacts], placed: int, need: Band
) -> list[Rejection]:
    """Reason for having no place for one more group."""
    shape = _shape(variant, ())
    if not able:
        return []
    if shape.ranks == 1:
        count = variant.replicas or 1
        reason = f"memory has room for {placed} of {count} replicas; {gib(need.high, exact=True)} are reserved for each"
        return [Rejection(what=f"replicas: {count}", reason=reason, why="memory")]
    if fleet.open_rings(shape.ranks, [node.name for node in able]):
        return [open_ring(shape.ranks)]
    names = ", ".join(node.name for node in able)
    reason = f"{shape.ranks} linked nodes with room on each are needed; usable here: {names}"
    return [Rejection(what=f"TP={shape.tp}", reason=reason, why="node")]


def _no(variant: Variant, node: NodeFacts, reason: str, why: Why = "engine") -> Rejection:
    return Rejection(what=f"{node.name} · TP={_shape(variant, ()).tp}", reason=reason, why=why)


def _rung(variant: Variant, nodes: tuple[str, ...], stack: _Stack, weights: CpuWeights) -> Rung:
    files = weights.model.gguf if weights.model is not None else None
    speculation = _speculation(variant)
    known = {} if weights.draft is None or speculation.draft is None else {speculation.draft: weights.draft}
    candidate = Candidate(
        model=variant.model,
        shape=_shape(variant, nodes),
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
        prediction=Prediction(memory_bytes_per_rank=_memory(variant, stack, weights)),
        reason=f"on the CPU: {'an image' if stack.image else 'the embedded engine'}, {ranks}",
        notes=(f"unknown image: assumed to contain {candidate.stack}",) if stack.image else (),
    )


def _speculation(variant: Variant) -> Speculation:
    """Speculation of the deployment. Nothing is known of speculation on CPUs, so `auto` is none."""
    wanted = variant.speculation
    if wanted.method == "auto" or wanted.method == "none":  # noqa: PLR1714  # mypy narrows by these only
        return Speculation()
    return Speculation(method=wanted.method, tokens=wanted.tokens or DEFAULT_DRAFT_TOKENS, draft=wanted.draft)
