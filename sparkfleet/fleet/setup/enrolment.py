"""Enrols machines: their kinds, the cables between them, and the inventory that follows. Nothing changes on a machine.

The machines come from `hosts`; a person confirms their host keys between `read_keys` and `pinned_nodes` of `shown_keys`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from sparkfleet.doctor.machine_kind import MachineKind, Recognised, recognise
from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.fabric.ask import value_or
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.inventory_builder import EnrolledMachine, merge, name_machines, usable_links
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.topology import find_links
from sparkfleet.fleet.setup.hosts import valid_words
from sparkfleet.fleet.setup.shown_keys import ShownKey
from sparkfleet.hostfacts.fact import text
from sparkfleet.hostfacts.machine import MachineIdentity, ReadIdentity, ReadPciDevices
from sparkfleet.hostfacts.node import ReadMemory
from sparkfleet.knowledge.hardware import memory_size
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channel
from sparkfleet.specs.inventory import Inventory, Node
from sparkfleet.specs.load import parse_inventory
from sparkfleet.specs.write import write_inventory

SCHEMA = "docs/schema/inventory.schema.json"
"""The schema for editors, in a clone of the project."""


class FoundMachine(NamedTuple):
    """A machine that accepted the login: its node, host name, kind and memory."""

    node: Node
    hostname: str
    kind: Recognised
    memory: str = ""
    """Its nominal size ("64 GB"); "" if it was not read."""


class NewInventory(NamedTuple):
    """The text of an inventory, and the reasons for rails that it leaves out."""

    text: str
    doubts: tuple[str, ...]


@asynccontextmanager
async def channels_to(nodes: Sequence[Node]) -> AsyncIterator[list[Channel]]:
    """Channels to nodes that have no name yet, in their order; closed at the end."""
    channels = [open_channel(node.address, node) for node in nodes]
    try:
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def find_machines(nodes: Sequence[Node], channels: Sequence[Channel]) -> list[FoundMachine]:
    """Log in to the nodes, and recognise their machines. Raises NodeError."""
    answers = await asyncio.gather(*(_recognise(channel) for channel in channels))
    return [FoundMachine(node, *answer) for node, answer in zip(nodes, answers, strict=True)]


def require_sparks(machines: Sequence[FoundMachine]) -> None:
    """Raises SparkfleetError if a machine is not a Spark."""
    strangers = [
        f"{one.node.address} is {one.kind.name or 'no Spark'}: {one.kind.because}."
        for one in machines
        if one.kind.kind is not MachineKind.SPARK
    ]
    if strangers:
        raise SparkfleetError(
            "\n".join(strangers),
            means="sparkfleet's figures for memory, speed and cables hold for Sparks only.",
            do="Leave it out, or add --any to accept it.",
        )


async def _recognise(channel: Channel) -> tuple[str, Recognised, str]:
    name, identity, pci, meminfo = await run_batch(
        channel, [("uname", "-n"), ReadIdentity.argv, ReadPciDevices.argv, ReadMemory.argv]
    )
    if isinstance(name, NodeError):
        raise name
    machine = value_or(identity, ReadIdentity.parse, MachineIdentity(), fine=ReadIdentity.fine)
    kind = recognise(machine, value_or(pci, ReadPciDevices.parse, ()))
    memory = value_or(meminfo, ReadMemory.parse, None)
    return text(name.stdout.strip(), 64), kind, memory_size(memory.total) if memory else ""


def named(
    machines: Sequence[FoundMachine], old: Inventory | None, keys: Sequence[ShownKey] = ()
) -> dict[str, Node]:
    """The machines' nodes by their names: those of `old`, also of nodes that have another address, or their host names."""
    found = [EnrolledMachine(node=one.node, hostname=one.hostname) for one in machines]
    return name_machines(found, old, {one.where: one.moved for one in keys if one.moved})


async def find_cables(
    names: Mapping[str, Node], nodes: Sequence[Node], channels: Sequence[Channel]
) -> DiscoveredLinks:
    """The cables between the machines, by their names. Raises NodeError or FactError."""
    by_node = dict(zip(nodes, channels, strict=True))
    return find_links(await look({name: by_node[node] for name, node in names.items()}))


def new_inventory(
    names: Mapping[str, Node], found: DiscoveredLinks, old: Inventory | None, *, fleet: str, file: Path
) -> NewInventory:
    """The inventory of the machines and their cables; fields of `old` that cannot be detected are kept.

    Raises:
        SparkfleetError: the fleet's name is not valid.
    """
    links, doubts = usable_links(found)
    with valid_words():
        merged = merge(old, names, links, fleet)
    written = write_inventory(merged, about=_about(found, file.parent), doubts=doubts)
    parse_inventory(written, str(file))
    return NewInventory(written, doubts)


def _about(found: DiscoveredLinks, directory: Path) -> list[str]:
    has_schema = (
        directory / SCHEMA
    ).is_file()  # in a clone; elsewhere an editor would report that it is missing
    return [
        *((f"yaml-language-server: $schema=./{SCHEMA}", "") if has_schema else ()),
        f"Written by `sparkfleet init`; the cables that it found form: {found.kind}. You may edit this file:",
        "a later `init` shows its changes first, and keeps every field that it cannot detect.",
    ]
