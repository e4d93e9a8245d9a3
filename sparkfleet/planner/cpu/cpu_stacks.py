"""Engines that nodes can start without a GPU: CPU builds that are installed, or in the image that a deployment names. Pure.

No image of a CPU build is known by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.deployment import EngineName, Variant

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang")
"""Engines that have CPU builds, in the order in which `auto` takes them."""

SUPPOSED = {"vllm": "0.32.0+cpu", "sglang": "0.5.23+cpu"}
"""Versions assumed inside an image if no node has a CPU build of that engine: those that sparkfleet was tested with."""


class CpuStack(NamedTuple):
    """Stack of an engine: an environment of the node, or an image, with a Python of its own."""

    engine: EngineName
    version: str
    python: str = "python3"
    image: str | None = None


def uses_gpu(node: NodeFacts) -> bool:
    """True if engines on a node run on its GPU. They do not if all that are installed are CPU builds."""
    builds = [home.version for home in node.engines.values()]
    return node.gpu is not None and not (builds and all("cpu" in version for version in builds))


def stack_of(variant: Variant, nodes: Sequence[NodeFacts], node: NodeFacts) -> CpuStack | None:
    """The stack of a variant on a node, None if it has none; `nodes` are searched for the version of an unknown image."""
    if variant.image or variant.runtime == "container":
        return _in_image(variant, nodes)
    return next(_installed(variant, (node,)), None)


def _installed(variant: Variant, nodes: Sequence[NodeFacts]) -> Iterator[CpuStack]:
    for engine in ENGINES if variant.engine == "auto" else (variant.engine,):
        for node in nodes:
            home = node.engines.get(engine)
            if home is not None and ("cpu" in home.version or engine == "llama.cpp"):
                yield CpuStack(engine, home.version, home.python)


def _in_image(variant: Variant, nodes: Sequence[NodeFacts]) -> CpuStack | None:
    """The stack of the deployment's image; None if it is known, because every known image is built for GPUs."""
    if variant.image is None or images_of(variant.image):
        return None
    if variant.engine == "llama.cpp":
        return CpuStack("llama.cpp", "", image=variant.image)
    named = next((engine for engine in ENGINES if engine in variant.image.lower()), ENGINES[0])
    engine = named if variant.engine == "auto" else variant.engine
    installed = _installed(variant.model_copy(update={"engine": engine}), nodes)
    version = next((stack.version for stack in installed), SUPPOSED[engine])
    return CpuStack(engine, version, image=variant.image)


def missing_stack(variant: Variant, node: NodeFacts) -> str:
    """Reason for a node to have no stack for a variant."""
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
    return f"{ENGINE_LABELS[wanted]} is not installed{remedy}"
