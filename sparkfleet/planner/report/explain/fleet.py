"""The fleet that is planned for, and the load of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.hardware import hardware, is_known_gpu, memory_size
from sparkfleet.planner.report.explain.layout import labelled, lines_of
from sparkfleet.planner.types.node_load import NodeLoad
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GIB, gib_of, plural


def explain_fleet(
    spec: Deployment,
    plan: DeploymentPlan | None,
    facts: Sequence[NodeFacts],
    fleet: str,
    *,
    links: Sequence[LinkFacts] = (),
    assumed: Sequence[str] = (),
    drained: Sequence[str] = (),
) -> str:
    """The headline: the deployment's request, and the fleet that it is planned for."""
    asked = [f"objective {spec.objective}"]
    if plan is not None:
        first = plan.groups[0]
        candidate, total = first.choice.candidate, first.shared_concurrency
        asked += [f"context {candidate.context}"] if candidate.context else []
        # What is set is of all replicas, and each has its share of it.
        each = f"{total}, {candidate.concurrency} in each replica" if total else f"{candidate.concurrency}"
        asked += [f"concurrency {each if total != candidate.concurrency else total}"]
    head = f"{spec.name}   {' · '.join(asked)}"
    return "\n".join(
        [head, *lines_of("fleet", f"{fleet}: {_fleet(facts, links, assumed)}{_left_out(drained, facts)}"), ""]
    )


def _fleet(facts: Sequence[NodeFacts], links: Sequence[LinkFacts], assumed: Sequence[str]) -> str:
    noun = "Spark" if all(node.gpu and is_known_gpu(node.gpu.name) for node in facts) else "node"
    words = plural(len(facts), noun) + _sizes(facts)
    if assumed:
        some = "" if len(assumed) == len(facts) else f"{', '.join(assumed)} "
        words += f" ({some}assumed, not read)"
    if links:
        words += f", {plural(len(links), 'link')} ({_links(links)})"
    if not assumed and any(link.provenance is LinkProvenance.DEFAULT for link in links):
        words += "; links not measured"
    return words


def _sizes(facts: Sequence[NodeFacts]) -> str:
    """Nominal memory of Sparks: " of 64 GB", or ", 2 of 128 GB and 2 of 64 GB"; "" if all have the 128 GB of most."""
    sparks = [node for node in facts if node.gpu and is_known_gpu(node.gpu.name)]
    counts = Counter(memory_size(node.memory.total) for node in sparks)
    if len(counts) > 1:
        return f", {' and '.join(f'{count} of {size}' for size, count in counts.items())}"
    (size,) = counts or ("",)
    return f" of {size}" if size not in ("", hardware().boxes[0].size) else ""


def _left_out(drained: Sequence[str], facts: Sequence[NodeFacts]) -> str:
    words = f"; without {', '.join(drained)}: drained" if drained else ""
    unknown = [
        f"{node.name} ({node.gpu.name})" for node in facts if node.gpu and not is_known_gpu(node.gpu.name)
    ]
    return f"{words}; without {', '.join(unknown)}: {UNKNOWN}" if unknown else words


UNKNOWN = "no GB10 of a DGX Spark, so that memory, speed and images are not known"
"""Reason for leaving nodes with another GPU out of a plan."""
ALIKE = 0.9
"""Least bandwidth of a link, as a share of the fastest that it is shown with."""
NAMED = 3
"""Most links of one speed that are named."""


def _links(links: Sequence[LinkFacts]) -> str:
    """The speed of most links, by the slowest of them, and the others by name."""
    groups: list[list[LinkFacts]] = []
    for link in sorted(links, key=lambda one: -one.gb_per_s):
        like = (one for one in groups if (one[0].kind, one[0].rails) == (link.kind, link.rails))
        found = next((one for one in like if link.gb_per_s >= ALIKE * one[0].gb_per_s), None)
        if found is None:
            groups.append([link])
        else:
            found.append(link)
    most, *others = sorted(groups, key=lambda one: -len(one))
    return "; ".join((_link(most[-1]), *(f"{_names(one)}: {_link(one[-1])}" for one in others)))


def _names(links: Sequence[LinkFacts]) -> str:
    names = sorted("–".join((*link.nodes, link.switch) if link.switch else link.nodes) for link in links)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _link(link: LinkFacts) -> str:
    kind = "RoCE" if link.kind == "roce" else "TCP"
    rails = "both rails" if link.rails == 2 else plural(link.rails, "rail")
    return f"{kind} {rails}, {link.gb_per_s:.1f} GB/s, {link.latency_us:.0f} µs"


def explain_origins(origins: Sequence[tuple[str, str]]) -> list[str]:
    """Lines with the origin of the sizes of models: (model, origin)."""
    return [line for model, origin in origins for line in lines_of("sizes", f"{model}: {origin}")]


def explain_measured(measured: Sequence[str]) -> list[str]:
    """Lines with the measurements of running groups."""
    return [labelled("measured" if number == 0 else "", text) for number, text in enumerate(measured)]


def explain_nodes(loads: Sequence[NodeLoad]) -> list[str]:
    """Load and remaining memory of every node in use, of what engines may take there: the host keeps its own."""
    lines: list[str] = []
    for load in (load for load in loads if load.placed or load.on_demand or load.kept):
        left = f"{gib_of(max(0, load.left), load.usable)} for engines left"
        held = [f"{_held(load.placed)} GiB"] if load.placed else []
        demanded = [f"on demand: {_on_demand(load)}"] if load.on_demand else []
        kept = [f"kept in case a node is lost: {_held(load.kept)} GiB"] if load.kept else []
        words = "; ".join((*held, *kept, left, *demanded))
        lines.append(labelled("nodes" if not lines else "", f"{load.node}: {words}"))
    return lines


def _on_demand(load: NodeLoad) -> str:
    held = f"{_held(load.on_demand)} GiB"
    fit = sum(size for _, size in load.on_demand) <= load.left
    return held if fit or len(load.on_demand) == 1 else f"{held}, in turns, as not all fit at once"


def _held(placed: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {size / GIB:.0f}" for name, size in placed)
