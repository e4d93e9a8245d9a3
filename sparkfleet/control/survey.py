"""Gathers the facts of nodes through their channels."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TypeVar

from sparkfleet.errors import NodeError
from sparkfleet.facts.node import (
    EngineHome,
    Fact,
    NodeFacts,
    ReadEngines,
    ReadGpu,
    ReadMemory,
    ReadProcessors,
)
from sparkfleet.nodes.base import Channel
from sparkfleet.spec.inventory import Inventory, Node

T = TypeVar("T")


async def survey(inventory: Inventory, channels: Mapping[str, Channel]) -> tuple[NodeFacts, ...]:
    """The facts of every node of the inventory, all nodes at once.

    Raises:
        NodeError: a node cannot be reached or refuses a command that every node has.
        FactError: a node answered something that is not understood.
    """
    return tuple(
        await asyncio.gather(*(_node(name, node, channels[name]) for name, node in inventory.nodes.items()))
    )


async def _node(name: str, node: Node, channel: Channel) -> NodeFacts:
    memory, processors, gpu, engines = await asyncio.gather(
        _read(ReadMemory, channel),
        _read(ReadProcessors, channel),
        _read_or(ReadGpu, channel, None),
        _engines(node, channel),
    )
    return NodeFacts(name=name, memory=memory, processors=processors, gpu=gpu, engines=engines)


async def _engines(node: Node, channel: Channel) -> dict[str, EngineHome]:
    """What the inventory names, each in its own environment; without that, what sparkfleet's own environment has."""
    if not node.engines:
        found = await _read(ReadEngines, channel, python=sys.executable)
        return {
            engine: EngineHome(python=sys.executable, version=version) for engine, version in found.items()
        }
    homes: dict[str, EngineHome] = {}
    for engine, home in node.engines.items():
        found = await _read(ReadEngines, channel, python=home.python)
        if engine in found:
            homes[engine] = EngineHome(python=home.python, version=found[engine])
    return homes


async def _read(fact: type[Fact[T]], channel: Channel, python: str | None = None) -> T:
    argv = fact.argv if python is None else (python, *fact.argv[1:])
    done = await channel.run(argv, timeout_s=30)
    if done.exit_code != 0:
        raise NodeError(
            f"{channel.node}: `{argv[0]}` failed with exit code {done.exit_code}: {done.stderr.strip()[:200]}",
            means="This node's facts are not known, so nothing is planned on it.",
            do="Run the command by hand on the node.",
        )
    return fact.parse(done.stdout)


async def _read_or(fact: type[Fact[T]], channel: Channel, otherwise: T) -> T:
    """For tools that a node may lack."""
    try:
        done = await channel.run(fact.argv, timeout_s=30)
    except NodeError:
        return otherwise
    return fact.parse(done.stdout) if done.exit_code == 0 else otherwise
