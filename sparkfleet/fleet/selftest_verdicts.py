"""Verdicts of a self-test: what a node gave, held against what the planner and the lab assume. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.doctor.collect import RawAnswer
from sparkfleet.fleet.lifecycle.reboot import BACK_S, Survival
from sparkfleet.fleet.nodes.all_reduce import AllReduceMeasurement, Sent
from sparkfleet.fleet.planning.group_measurements import canary_words, measured_words
from sparkfleet.fleet.report.outcome import rung_lines
from sparkfleet.hostfacts.network.link import LinkFacts
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.planner.cpu.cpu_stacks import uses_gpu
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GIB, gib

NAME = "selftest"
"""Of its deployment and of its key."""
ON_GPUS, ON_CPUS = "Qwen/Qwen3-0.6B", "builtin:tiny"
"""Models of the test: the built-in ones run on CPUs only, and a GPU has to prove the image that is planned for it. That
one has 1.5 GB, and published figures of a Spark against which the prediction can be held."""
REPORT = "`sparkfleet bundle` has its events and the end of its log: please attach it to a report."
LEFT_BYTES = GIB
"""Memory that an ended engine may leave unreturned: files that others read meanwhile are in the page cache."""
INSTEAD = {"pci_links": "pci_by_address"}
"""Facts that another one replaces: a netdev's PCIe link is found by its name or by its address."""
SLOW = 0.7
"""A link that reaches less than this share of the planner's figure is a fault; rails differ by less among published ones."""
EVEN = 0.5
"""A rail that carries less than this share of the busiest of its node is a fault: NCCL splits each message over all."""
LATE = 2.0
"""The same as `SLOW` for a latency above this multiple: each token of a split model waits for it twice a layer."""


class StepVerdict(NamedTuple):
    """Result of one step: if it is as assumed, and the figures."""

    fine: bool
    words: str
    do: str = ""


def facts_seen(answers: Sequence[RawAnswer]) -> StepVerdict:
    """Facts that no command of a node has given. Several commands may give the same one."""
    known = {one.field for one in answers if not one.not_understood}
    lost = {one.field: one for one in answers if not {one.field, INSTEAD.get(one.field)} & known}
    if not lost:
        return StepVerdict(True, f"{len(known)} facts by {len(answers)} commands, each output understood")
    first = next(iter(lost.values()))
    return StepVerdict(
        False,
        f"{len(lost)} of {len(known) + len(lost)} facts could not be read: {', '.join(lost)}; first: {first.not_understood}",
        "`sparkfleet bundle` has the raw outputs: please attach it to a report.",
    )


def link_seen(measured: LinkFacts, assumed: LinkFacts) -> StepVerdict:
    """A link's measured numbers against those that the planner assumes of such links."""
    words = (
        f"{measured.gb_per_s:.1f} GB/s and {measured.latency_us:.0f} µs measured;"
        f" assumed of such links: {assumed.gb_per_s:.1f} GB/s, {assumed.latency_us:.0f} µs"
    )
    fine = measured.gb_per_s >= SLOW * assumed.gb_per_s and measured.latency_us <= LATE * assumed.latency_us
    return StepVerdict(
        fine, words, "" if fine else "`sparkfleet doctor` looks for the cause; plans use the measured figure."
    )


def planned_link(links: Sequence[LinkFacts], nodes: Sequence[str]) -> LinkFacts:
    """The figures with which these nodes are planned as one: those of the slowest link that joins them."""
    among = [link for link in links if set(link.nodes) <= set(nodes)]
    return max(among, key=lambda link: (link.latency_us, -link.gb_per_s))


def all_reduce_seen(measured: AllReduceMeasurement, assumed: LinkFacts) -> StepVerdict:
    """All-reduces against the figures of the plan, and the bytes of each rail."""
    rails = rails_seen(
        measured.sent, split=measured.by_rdma, at_least=measured.moved if measured.backend == "gloo" else 1
    )
    if measured.backend == "gloo":
        words = (
            f"gloo on CPUs: {measured.gb_per_s:.2f} GB/s, {measured.latency_us:.0f} µs"
            " (the planner's figures are of NCCL)"
        )
        return StepVerdict(rails.fine, f"{words}; {rails.words}", rails.do)
    found = assumed.model_copy(update={"gb_per_s": measured.gb_per_s, "latency_us": measured.latency_us})
    speed = link_seen(found, assumed)
    words = f"NCCL {measured.nccl}: {speed.words}; {rails.words}"
    return StepVerdict(speed.fine and rails.fine, words, rails.do or speed.do)


def rails_seen(sent: Sent, *, split: bool = True, at_least: int = 1) -> StepVerdict:
    """The bytes that each rail of each node has sent.

    Args:
        sent: by node and rail.
        split: the bytes are split over all rails; False: the first one carries them.
        at_least: bytes that each node has to send over its rails.
    """
    words = sent_words(sent)
    do = "`sparkfleet doctor` looks for the cause; `sparkfleet fabric measure` loads each rail."
    for node, rails in sent.items():
        busiest = max(rails, key=rails.__getitem__)
        if sum(rails.values()) < at_least:
            return StepVerdict(
                False, f"{node} sent its messages over another network than the rails ({words})", do
            )
        for rail, count in rails.items() if split else ():
            if count < EVEN * rails[busiest]:
                fault = (
                    "carried nothing"
                    if count == 0
                    else f"carries less than {EVEN:.0%} of what {busiest} carries"
                )
                return StepVerdict(False, f"{node}: {rail} {fault} ({words})", do)
    return StepVerdict(True, words)


def sent_words(sent: Sent) -> str:
    """`sent: spark1 rocep1s0f0 512.0 MB, roceP2p1s0f0 511.8 MB; spark2 …`."""
    nodes = (
        f"{node} {', '.join(f'{rail} {count / 1e6:.1f} MB' for rail, count in rails.items())}"
        for node, rails in sent.items()
    )
    return f"sent: {'; '.join(nodes)}"


def survival_seen(survival: Survival) -> StepVerdict:
    """A node that was rebooted: the seconds until it and all that it served were back."""
    if survival.node_s is None:
        return StepVerdict(
            False,
            f"not part of the fleet again within {BACK_S / 60:.0f} min",
            "sparkfleet status; sparkfleet up",
        )
    node = f"part of the fleet again after {survival.node_s:.0f} s"
    if survival.served_s is None:
        missing = ", ".join(survival.missing)
        return StepVerdict(False, f"{node}; not ready again within {BACK_S / 60:.0f} min: {missing}", REPORT)
    return StepVerdict(True, f"{node}, all that it served was ready after {survival.served_s:.0f} s")


def engine_spec(nodes: Sequence[NodeFacts], model: str | None = None) -> Deployment:
    """The deployment of a test on these nodes, on all of them as one if there are several."""
    usual = ON_GPUS if all(map(uses_gpu, nodes)) else ON_CPUS
    fields = {
        "name": NAME,
        "model": model or usual,
        "context": 512,
        "concurrency": 4,
        "nodes": tuple(node.name for node in nodes),
    }
    return Deployment.model_validate(fields | ({"parallel": {"tp": len(nodes)}} if len(nodes) > 1 else {}))


def engine_seen(state: DeploymentStatus, tokens: int, returned: int) -> StepVerdict:
    """An engine that has answered and ended; on a lower rung than the planned one it is a fault.

    `returned`: bytes that its nodes have more of since.
    """
    group = state.groups[0]
    rungs = tuple(rung_lines(state, group))
    if group.rung:
        return StepVerdict(False, "; ".join(rungs), REPORT)
    words = [
        *rungs,
        f"answered {tokens} tokens",
        measured_words(state, group),
        canary_words(group) or "not checked by the canary",
    ]
    if returned < -LEFT_BYTES:
        return StepVerdict(
            False,
            f"its end left {gib(-returned, exact=True)} less memory than while it ran",
            "`sparkfleet doctor`",
        )
    return StepVerdict(tokens > 1, "; ".join(words))
