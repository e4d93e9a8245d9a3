"""Reads a fleet: all nodes in parallel, each in one round trip; a node that does not answer becomes a value, too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkfleet.doctor.snapshot import (
    EndSnapshot,
    FleetReadings,
    LinkSnapshot,
    Needed,
    NodeSnapshot,
    PathSnapshot,
    RailSnapshot,
    Silence,
)
from sparkfleet.errors import FactError, NodeError, SparkfleetError
from sparkfleet.hostfacts.clock import ClockOffset, ReadChrony, ReadClock, ReadTimeSync
from sparkfleet.hostfacts.container import ContainerTool, ReadCdi, ReadDocker, ReadPodman
from sparkfleet.hostfacts.disk import ReadDisks
from sparkfleet.hostfacts.fact import Fact
from sparkfleet.hostfacts.gpu import ReadGpuProcesses, ReadGpuState
from sparkfleet.hostfacts.kernel_log import ReadKernelLog, ReadPackages
from sparkfleet.hostfacts.last_boot import ReadLastBoot
from sparkfleet.hostfacts.machine import ReadHostKeys, ReadIdentity, ReadPciDevices
from sparkfleet.hostfacts.memory import ReadFreeBlocks, ReadKernel, ReadMemoryMap
from sparkfleet.hostfacts.network.arp_ndp import ReadLooseArp
from sparkfleet.hostfacts.network.ethtool import ReadFec, ReadLinkSettings
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.hostfacts.network.netdev import ReadNetdevs
from sparkfleet.hostfacts.network.pci_link import ReadPciLink, ReadPciLinks
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel, ReadRdmaDevices, ReadRdmaLinks
from sparkfleet.hostfacts.privileges import (
    ReadLockedMemory,
    ReadLockedMemoryOfKernel,
    ReadOpenFiles,
    ReadServices,
    ReadUser,
)
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.remote.parallel import fan_out
from sparkfleet.remote.unreachable import HostKeyChanged
from sparkfleet.specs.inventory import Inventory, Link, Node
from sparkfleet.values import Value

NODE_S = 60.0
"""Seconds: longer than a busy Spark takes. A node that is off costs only the time-out of its connection."""
AT_A_TIME = 16
"""Nodes read in parallel: each runs about 35 short commands, and this machine parses all answers."""
COMMAND_S = 20.0
NOT_FOUND = 127
_NOT_FOUND, _LATE = "was not found", "did not end within"
"""Words of `run_batch` for a program that does not exist, and for one that was killed."""

Answer = Completed | NodeError


@dataclass(frozen=True)
class Question:
    """A command, the field of `NodeSnapshot` for its answer, and the parser.

    If several questions fill one field, the first answer counts.
    """

    field: str
    argv: tuple[str, ...]
    read: Callable[[int, str, str], Any]
    key: str = ""
    """The rail's netdev, for fields with one value for each."""


FACTS: tuple[tuple[str, type[Fact[Any]]], ...] = (
    ("identity", ReadIdentity),
    ("pci", ReadPciDevices),
    ("host_keys", ReadHostKeys),
    ("gpus", ReadGpuState),
    ("gpu_processes", ReadGpuProcesses),
    ("memory", ReadMemoryMap),
    ("free_blocks", ReadFreeBlocks),
    ("kernel", ReadKernel),
    ("kernel_log", ReadKernelLog),
    ("last_boot", ReadLastBoot),
    ("packages", ReadPackages),
    ("processes", ReadHoldingProcesses),
    ("disks", ReadDisks),
    ("docker", ReadDocker),
    ("podman", ReadPodman),
    ("cdi", ReadCdi),
    ("time_sync", ReadTimeSync),
    ("time_sync", ReadChrony),
    ("locked_memory", ReadLockedMemory),
    ("locked_memory", ReadLockedMemoryOfKernel),
    ("open_files", ReadOpenFiles),
    ("user", ReadUser),
    ("services", ReadServices),
    ("sockets", ReadSockets),
    ("netdevs", ReadNetdevs),
    ("loose_arp", ReadLooseArp),
    ("rdma_links", ReadRdmaLinks),
    ("rdma_devices", ReadRdmaDevices),
    ("pci_by_address", ReadPciLinks),
    ("gids", ReadGidsOfKernel),
)
"""All facts that are read of every node. The clock is read separately: its answer has to be quick to be exact."""


async def gather(
    inventory: Inventory,
    channels: Mapping[str, Channel],
    *,
    nodes: Iterable[str] = (),
    timeout_s: float = NODE_S,
) -> FleetReadings:
    """Reads everything that needs no traffic between nodes. `nodes`: only these; empty: all.

    A node that does not answer costs its own `timeout_s`, and is reported as silent.
    """
    names = tuple(nodes) or tuple(inventory.nodes)
    asked = {name: channels[name] for name in names}

    async def one(channel: Channel) -> NodeSnapshot:
        node, netdevs = inventory.nodes[channel.node], netdevs_of(inventory, channel.node)
        return await read_node(channel, node, netdevs, inventory.environment)

    found = await fan_out(asked, one, limit=AT_A_TIME, timeout_s=timeout_s)
    views = (
        view if isinstance(view, NodeSnapshot) else silent(name, inventory.nodes[name], view)
        for name, view in found.items()
    )
    return FleetReadings(
        name=inventory.fleet,
        head=inventory.head,
        nodes=tuple(views),
        links=tuple(link_view(link) for link in inventory.links if set(link.nodes) <= set(names)),
        other_links=tuple(link_view(link) for link in inventory.links if not set(link.nodes) <= set(names)),
        gateway_port=inventory.gateway.port,
        gateway_host=inventory.gateway.host,
        read_at=time.time(),
    )


async def read_node(
    channel: Channel, node: Node, netdevs: Sequence[str], environment: str | None = None
) -> NodeSnapshot:
    """Reads one node. `environment`: of the inventory. Raises NodeError if it cannot be reached."""
    answers = await _answers(channel, tuple(_questions(node, netdevs, environment)))
    return await _with_clock(compose(channel.node, node, answers), channel)


async def _answers(channel: Channel, questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
    """The answers, in any order. Podman makes directories in a home that never used it, so it is asked only if engines would
    run with it."""
    found = await _ask(channel, [one for one in questions if one.field != "podman"])
    if not any(_is_usable_docker(*one) for one in found):
        found += await _ask(channel, [one for one in questions if one.field == "podman"])
    return found


async def _ask(channel: Channel, questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
    answers = await run_batch(channel, [one.argv for one in questions], timeout_s=COMMAND_S)
    return list(zip(questions, answers, strict=True))


def _is_usable_docker(question: Question, answer: Answer) -> bool:
    if question.field != "docker":
        return False
    try:
        tool = _value(question, answer)
    except (FactError, NodeError):
        return False
    return tool is not None and tool.usable


class RawAnswer(Value):
    """A command of a fact as it was run on a node, with its output, and if it was understood."""

    field: str
    argv: tuple[str, ...]
    exit_code: int | None = None
    """None if it did not end, or does not exist."""
    missing: bool = False
    """The node has no such program."""
    late: bool = False
    """It did not end in time, and was killed."""
    stdout: str = ""
    stderr: str = ""
    not_understood: str = ""
    """The reason why its output is no value; "" if it is one."""


async def read_raw(
    channel: Channel,
    node: Node,
    netdevs: Sequence[str] = (),
    environment: str | None = None,
    *,
    more: Sequence[Question] = (),
) -> tuple[RawAnswer, ...]:
    """The outputs of all facts of one node, and of `more`, as it printed them. `environment`: of the inventory.

    Raises:
        NodeError: it cannot be reached.
    """
    return tuple(
        _raw(*one) for one in await _answers(channel, (*_questions(node, netdevs, environment), *more))
    )


def _raw(question: Question, answer: Answer) -> RawAnswer:
    reason = ""
    try:
        _value(question, answer)
    except (FactError, NodeError) as error:
        reason = error.what
    found = RawAnswer(field=question.field, argv=question.argv, not_understood=reason)
    if not isinstance(answer, Completed):
        missing = _NOT_FOUND in answer.what
        return found.model_copy(update={"missing": missing, "late": not missing and _LATE in answer.what})
    output = {"exit_code": answer.exit_code, "stdout": answer.stdout, "stderr": answer.stderr}
    return found.model_copy(update=output)


def _questions(node: Node, netdevs: Sequence[str], environment: str | None) -> Iterator[Question]:
    for field, fact in FACTS:
        yield Question(field, fact.argv, fact.answer)
    own = environment or (sys.executable if node.is_local else None)
    argv = ReadPythonEnvironment.own(own) if own else ReadPythonEnvironment.argv
    yield Question("python", argv, ReadPythonEnvironment.answer)
    for netdev in netdevs:
        for field, fact_of in (("settings", ReadLinkSettings), ("fec", ReadFec), ("pci_links", ReadPciLink)):
            about = fact_of(netdev)
            yield Question(field, about.argv, _stdout(about.parse), netdev)


def _stdout(parse: Callable[[str], Any]) -> Callable[[int, str, str], Any]:
    """A parser that ignores the exit code: `ethtool` and `grep` fail if a part of the answer is missing."""
    return lambda exit_code, stdout, stderr: parse(stdout)


def compose(name: str, node: Node, answers: Iterable[tuple[Question, Answer]]) -> NodeSnapshot:
    """A node from its answers. Answers that cannot be parsed are unknown, with the reason. Pure."""
    found: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for question, answer in answers:
        try:
            value = _value(question, answer)
        except (FactError, NodeError) as error:
            unknown.setdefault(question.field, error.what)
            continue
        if question.key:
            found.setdefault(question.field, {})[question.key] = value
        elif not found.get(question.field):
            found[question.field] = value
    tools = _tools(found)
    if tools is None and (why := unknown.get("docker") or unknown.get("podman")):
        unknown["container_tools"] = why
    return NodeSnapshot(
        name=name,
        address=node.address,
        pinned_key=node.host_key,
        engines_of_its_own=bool(node.engines),
        container_tools=tools,
        unknown={field: why for field, why in unknown.items() if field not in found},
        **found,
    )


def _value(question: Question, answer: Answer) -> Any:
    if isinstance(answer, Completed):
        return question.read(answer.exit_code, answer.stdout, answer.stderr)
    if _NOT_FOUND in answer.what:
        return question.read(NOT_FOUND, "", answer.what)
    raise answer


def _tools(found: dict[str, Any]) -> tuple[ContainerTool, ...] | None:
    """None if an answer could not be parsed and no tool was found: the other one may be installed."""
    answered = [found.pop(name) for name in ("docker", "podman") if name in found]
    tools = tuple(tool for tool in answered if tool is not None)
    return tools if tools or len(answered) == 2 else None


async def _with_clock(view: NodeSnapshot, channel: Channel) -> NodeSnapshot:
    """Reads the clock on the open connection, so that the answer takes little time."""
    asked = time.time()
    try:
        done = await channel.run(ReadClock.argv, timeout_s=COMMAND_S)
        read = ReadClock.answer(done.exit_code, done.stdout, done.stderr)
    except (FactError, NodeError) as error:
        return view.model_copy(update={"unknown": {**view.unknown, "clock": error.what}})
    return view.model_copy(update={"clock": ClockOffset.of(read, asked, time.time())})


def silent(name: str, node: Node, error: SparkfleetError) -> NodeSnapshot:
    """A node without an answer, and the reason."""
    return NodeSnapshot(
        name=name,
        address=node.address,
        pinned_key=node.host_key,
        silence=Silence(
            what=error.what if name in error.what else f"{name}: {error.what}",
            means=error.means or "The node is suspected to be down; its other checks cannot be decided.",
            do=error.do or f"Check its power, then try: ssh {node.user or 'USER'}@{node.address}",
            key_changed=isinstance(error, HostKeyChanged),
        ),
    )


def netdevs_of(inventory: Inventory, node: str) -> tuple[str, ...]:
    """The netdevs of a node's rails, as the inventory has them."""
    return tuple(
        rail[link.nodes.index(node)].netdev
        for link in inventory.links
        if node in link.nodes
        for rail in link.rails
    )


def link_view(link: Link) -> LinkSnapshot:
    """A link of the inventory, without measurements."""
    other = link.switch or link.nodes[-1]
    return LinkSnapshot(
        name=f"{link.nodes[0]}–{other}",
        nodes=link.nodes,
        switch=link.switch,
        rails=tuple(
            RailSnapshot(
                ends=tuple(
                    EndSnapshot(node=node, netdev=end.netdev, rdma=end.rdma, address=end.address)
                    for node, end in zip(link.nodes, rail, strict=True)
                )
            )
            for rail in link.rails
        ),
    )


def with_context(
    fleet: FleetReadings,
    *,
    sparkfleet: str = "",
    needed: Sequence[Needed] = (),
    paths: Sequence[PathSnapshot] | None = None,
) -> FleetReadings:
    """The fleet with this machine's version, the needs of deployments, and measurements between nodes."""
    return fleet.model_copy(
        update={
            "sparkfleet": sparkfleet,
            "needed": tuple(needed),
            "paths": None if paths is None else tuple(paths),
        }
    )
