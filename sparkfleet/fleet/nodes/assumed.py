"""Node facts for planning without contacting any node: those of a kind of Spark, or from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.hostfacts.node import Gpu, InstalledEngine, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.hardware import SparkModel, hardware
from sparkfleet.specs.document import Document, FileProblem, UnreadableError, read
from sparkfleet.specs.fields import FrozenDict, quote
from sparkfleet.specs.findings import explained
from sparkfleet.specs.inventory import Inventory
from sparkfleet.units import GB
from sparkfleet.values import Value

ALIASES = {"dgx-spark": "dgx-spark-128"}
SPARK_CORES = 20
MOST_SPARKS = 64
"""Most Sparks of an assumed inventory."""


Gb = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


def _usual_gb() -> float:
    return hardware().boxes[0].memory_total_gb.value


class AssumedNode(Value):
    """One node of a facts file. Default values are those of an idle DGX Spark with 128 GB."""

    memory_total_gb: Gb = Field(default_factory=_usual_gb)
    """MemTotal, GB (1e9 bytes)."""
    memory_available_gb: Gb | None = None
    """MemAvailable, GB; None: that of an idle node."""
    gpu: str | None = "NVIDIA GB10"
    driver: str = ""
    processors: int = SPARK_CORES
    machine: str = "aarch64"
    engines: FrozenDict[str, InstalledEngine] = FrozenDict()


def assume(what: str, inventory: Inventory) -> tuple[NodeFacts, ...]:
    """Facts of all nodes of an inventory, from a kind ("dgx-spark", "dgx-spark-64"), the kind of each node in their order
    ("dgx-spark,dgx-spark-64"), or a file with facts by node.

    Raises:
        SpecError: neither kinds, one for all nodes or one for each, nor a readable file; or the file is wrong.
    """
    boxes = {box.id: box for box in hardware().boxes}
    kinds = [boxes.get(ALIASES.get(kind, kind)) for kind in what.split(",")]
    if known := [box for box in kinds if box is not None]:
        each = known * len(inventory.nodes) if len(kinds) == 1 else known
        if len(known) < len(kinds) or len(each) != len(inventory.nodes):
            raise SpecError(
                f"--assume {quote(what)}: {len(kinds)} kinds for {len(inventory.nodes)} nodes, {len(known)} of them known.",
                do=f"One kind for all nodes, or one for each: {', '.join(sorted({*boxes, *ALIASES}))}.",
            )
        return tuple(_facts(name, _of_box(box)) for name, box in zip(inventory.nodes, each, strict=True))
    given = _read(what, sorted({*boxes, *ALIASES}))
    if unknown := sorted(set(given) - set(inventory.nodes)):
        raise SpecError(
            f"{what}: {unknown[0]}: is no node of the inventory.", do=f"Nodes: {', '.join(inventory.nodes)}."
        )
    return tuple(_facts(name, given.get(name, AssumedNode())) for name in inventory.nodes)


def assumed_inventory(count: int) -> Inventory:
    """An inventory of so many Sparks that nobody needs to have: two on one cable, more on a switch, one cable each.

    Args:
        count: from 1 to `MOST_SPARKS`.
    """
    names = [f"spark{number}" for number in range(1, count + 1)]
    rails = {name: _rail_ends(number) for number, name in enumerate(names, start=1)}
    links: list[dict[str, Any]] = []
    if count == 2:
        links = [{"nodes": names, "rails": [list(ends) for ends in zip(*rails.values(), strict=True)]}]
    elif count > 2:
        links = [
            {"nodes": [name], "switch": "switch", "rails": [[end] for end in ends]}
            for name, ends in rails.items()
        ]
    key = "SHA256:" + "A" * 43  # never compared: assumed nodes are not contacted
    nodes = {
        name: {"address": f"192.0.2.{number}", "user": "nvidia", "host_key": key}
        for number, name in enumerate(names, start=1)
    }
    return Inventory.model_validate(
        {"fleet": "idle-sparks", "head": names[0], "nodes": nodes, "links": links}, strict=False
    )


def _rail_ends(number: int) -> list[dict[str, str]]:
    """Both rails of one cable at a Spark, as its devices are named, in subnets for documentation (RFC 5737)."""
    halves = (("enp1s0f1np1", "rocep1s0f1", "198.51.100"), ("enP2p1s0f1np1", "roceP2p1s0f1", "203.0.113"))
    return [
        {"netdev": netdev, "rdma": rdma, "address": f"{subnet}.{number}/24"}
        for netdev, rdma, subnet in halves
    ]


def _of_box(box: SparkModel) -> AssumedNode:
    return AssumedNode(memory_total_gb=box.memory_total_gb.value)


def _facts(name: str, node: AssumedNode) -> NodeFacts:
    idle = _usual_gb() - hardware().memory.idle_available_gb.value
    available = node.memory_total_gb - idle if node.memory_available_gb is None else node.memory_available_gb
    return NodeFacts(
        name=name,
        memory=UnifiedMemory(total=round(node.memory_total_gb * GB), available=max(0, round(available * GB))),
        processors=Processors(count=node.processors, machine=node.machine),
        gpu=None if node.gpu is None else Gpu(name=node.gpu, driver=node.driver),
        engines=dict(node.engines),
    )


def _read(what: str, kinds: list[str]) -> dict[str, AssumedNode]:
    try:
        document = read(Path(what).read_text(encoding="utf-8"))
    except UnreadableError as error:
        raise _wrong(what, [FileProblem(error.line, (), error.text)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"--assume {quote(what)}: {getattr(error, 'strerror', None) or 'is not YAML'}.",
            means="It is neither a kind of machine nor a file with facts.",
            do=f"Kinds: {', '.join(kinds)}.",
        ) from error
    if not isinstance(document.value, dict):
        raise SpecError(f"{what}: expected a mapping of nodes to their facts.")
    problems = list(document.findings)
    nodes = {}
    for name, facts in document.value.items():
        try:
            nodes[name] = AssumedNode.model_validate(facts or {}, strict=False)
        except ValidationError as error:
            problems += _problems(document, name, error)
    if problems:
        raise _wrong(what, problems)
    return nodes


def _problems(document: Document, name: str, error: ValidationError) -> Iterator[FileProblem]:
    """The errors of one node, with their lines."""
    lines = {where[1:]: line for where, line in document.lines.items() if where[:1] == (name,)}
    of_node = Document(document.value[name], lines, ())
    for found in explained(AssumedNode, of_node, error.errors(include_url=False)):
        yield FileProblem(found.line or document.lines[name,], (name, *found.where), _plain(found.text))


def _plain(text: str) -> str:
    """Words of an error without those that specs have no description for."""
    return text.replace("Expected Input should be ", "Expected ").removesuffix(" Expected it.")


def _wrong(file: str, problems: Sequence[FileProblem]) -> SpecError:
    """The error of a file, one line for each problem, as those of inventories and deployments."""
    return SpecError(
        "\n".join(
            ": ".join(
                filter(
                    None,
                    (f"{file}:{one.line}" if one.line else file, ".".join(map(str, one.where)), one.text),
                )
            )
            for one in sorted(problems, key=lambda one: one.line or 0)
        )
    )
