"""Collects the facts of nodes that planning needs through their channels: all nodes at once, one round trip each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.errors import FactError, NodeError
from sparkfleet.hostfacts.fact import failed
from sparkfleet.hostfacts.machine import ReadIdentity
from sparkfleet.hostfacts.memory import Kernel, ReadKernel
from sparkfleet.hostfacts.node import (
    Fact,
    Gpu,
    InstalledEngine,
    NodeFacts,
    ReadEngines,
    ReadGpu,
    ReadInstalledEngines,
    ReadMemory,
    ReadProcessors,
)
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.specs.inventory import Inventory, Node

T = TypeVar("T")

COMMAND_S = 30.0

Answer = Completed | NodeError


async def collect_facts(
    inventory: Inventory, channels: Mapping[str, Channel], without: Collection[str] = ()
) -> tuple[NodeFacts, ...]:
    """The facts of every node of the inventory but those in `without`, all nodes at once.

    Raises:
        NodeError: nodes cannot be reached, or a command that every node has failed; it names all of them.
        FactError: the output of a command has an unknown form.
    """
    names = [name for name in inventory.nodes if name not in without]
    requests = (_node(name, inventory, channels[name]) for name in names)
    answers = await asyncio.gather(*requests, return_exceptions=True)
    failures = {
        name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, NodeError)
    }
    if failures:
        raise _failure(failures, inventory) from next(iter(failures.values()))
    return tuple(map(_or_raise, answers))


def _failure(failures: Mapping[str, NodeError], inventory: Inventory) -> NodeError:
    """One error for all nodes, with the command that plans without them."""
    first = next(iter(failures.values()))
    do = first.do
    if inventory.head not in failures:
        drains = ", ".join(f"`sparkfleet drain {name}`" for name in failures)
        do = f"{do} {drains}: the other nodes are planned without {'it' if len(failures) == 1 else 'them'}."
    return NodeError("\n".join(error.what for error in failures.values()), means=first.means, do=do.strip())


def _or_raise(answer: NodeFacts | BaseException) -> NodeFacts:
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def _node(name: str, inventory: Inventory, channel: Channel) -> NodeFacts:
    node, own = inventory.nodes[name], _own_python(inventory, name)
    engines = dict(_engine_questions(node, own))
    # A `python3` in PATH of this machine may be a wrapper that takes five times as long to start.
    python = sys.executable if node.is_local else ReadProcessors.argv[0]
    processors_argv = (python, *ReadProcessors.argv[1:])
    shared = [ReadMemory.argv, processors_argv, ReadGpu.argv, ReadKernel.argv, ReadIdentity.argv]
    argvs = [*shared, *engines.values()]
    memory, processors, gpu, settings, identity, *homes = await run_batch(channel, argvs, timeout_s=COMMAND_S)
    kernel = _kernel(settings)
    return NodeFacts(
        name=name,
        memory=_value(ReadMemory, memory, name),
        processors=_value(ReadProcessors, processors, name),
        gpu=_gpu(gpu, identity, name),
        engines=_homes(node, own, dict(zip(engines, homes, strict=True)), name),
        kernel=kernel.release,
        fleet_firewall=kernel.fleet_firewall,
    )


def _own_python(inventory: Inventory, name: str) -> str | None:
    """Python of sparkfleet on a node; None: that of the environment which `up` has made there, if any."""
    return inventory.environment or (sys.executable if inventory.nodes[name].is_local else None)


def _engine_questions(node: Node, own: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Commands that list the engines in the environments of the inventory; else those in sparkfleet's environment."""
    for engine, home in node.engines.items():
        yield engine, (home.python, *ReadEngines.argv[1:])
    if not node.engines:
        yield "", (own, *ReadEngines.argv[1:]) if own else ReadInstalledEngines.argv


def _homes(
    node: Node, own: str | None, answers: Mapping[str, Answer], name: str
) -> dict[str, InstalledEngine]:
    if node.engines:
        found = {
            engine: (home.python, _value(ReadEngines, answers[engine], name).get(engine))
            for engine, home in node.engines.items()
        }
        return {
            engine: InstalledEngine(python=python, version=version)
            for engine, (python, version) in found.items()
            if version is not None
        }
    if own:
        python, versions = own, _value(ReadEngines, answers[""], name)
    else:
        python, versions = _value(ReadInstalledEngines, answers[""], name)
    return {engine: InstalledEngine(python=python, version=version) for engine, version in versions.items()}


def _kernel(answer: Answer) -> Kernel:
    """The kernel's settings as far as they were read; a firewall that cannot be read closes nothing."""
    if isinstance(answer, NodeError) or answer.exit_code not in ReadKernel.fine:
        return Kernel()
    return ReadKernel.parse(answer.stdout)


def _gpu(answer: Answer, identity: Answer, node: str) -> Gpu | None:
    """The node's GPU; None if it lacks the tool or the driver, and is no Spark. Raises NodeError for a Spark's."""
    if isinstance(answer, NodeError):
        found, why = None, answer.what
    elif answer.exit_code != 0:
        found, why = None, failed(answer.argv, answer.exit_code, answer.stderr or answer.stdout).what
    else:
        found, why = ReadGpu.parse(answer.stdout), "nvidia-smi finds none"
    if found is None and _is_spark(identity):
        raise NodeError(
            f"{node}: the GPU of this Spark does not answer: {why.rstrip('.')}.",
            means="Planned without its GPU, its deployments would move to other nodes.",
            do=f"`sparkfleet doctor` looks for the cause; a driver upgrade that awaits a reboot is a common one. "
            f"`sparkfleet drain {node}` plans without this node.",
        )
    return found


def _is_spark(answer: Answer) -> bool:
    if isinstance(answer, NodeError) or answer.exit_code not in ReadIdentity.fine or not answer.stdout:
        return False
    return recognise(ReadIdentity.parse(answer.stdout)).kind is MachineKind.SPARK


def _value(fact: type[Fact[T]], answer: Answer, node: str) -> T:
    if isinstance(answer, NodeError):
        raise NodeError(
            f"{node}: {answer.what}",
            means=answer.means or "The facts of this node are unknown, so nothing can be planned on it.",
            do=answer.do,
        )
    try:
        if answer.exit_code != 0:
            raise failed(answer.argv, answer.exit_code, answer.stderr)
        return fact.parse(answer.stdout)
    except FactError as error:
        kind = NodeError if answer.exit_code != 0 else FactError
        raise kind(f"{node}: {error.what}", means=error.means, do=error.do) from error
