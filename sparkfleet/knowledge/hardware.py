"""What a DGX Spark is and what it reached when somebody measured it: `hardware.yaml`, checked on load."""

from __future__ import annotations

from functools import cache

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.entries import Date, Measured, Sources, entries, entry, frozen, packaged, parse
from sparkfleet.values import Value

FILE = "hardware.yaml"


class Box(Value):
    """A kind of Spark, by its memory."""

    id: str
    name: str
    pci_ids: tuple[str, ...]
    """`vendor:device` of the GPU as lspci prints it."""
    memory_total_gb: Measured
    """MemTotal, GB (1e9 bytes)."""
    cpu: str
    sources: Sources
    date: Date


class Vendor(Value):
    """Under which name the same board is sold."""

    id: str
    name: str
    dmi: tuple[str, ...]
    """Globs on the DMI product name."""
    note: str = ""
    sources: Sources
    date: Date


class Ceilings(Value):
    """The most that one Spark was seen to do."""

    read_gb_per_s: Measured
    bf16_tflops: Measured
    fp8_tflops: Measured
    fp4_tflops: Measured


class Link(Value):
    """A way in which two nodes are joined."""

    id: str
    name: str
    latency_us: Measured
    """One small all-reduce on an idle link."""
    gb_per_s: Measured
    """Bus bandwidth of a large collective."""


class Memory(Value):
    """Where memory goes beside the model, GB (1e9 bytes)."""

    idle_available_gb: Measured
    host_reserve_gb: Measured
    nccl_communicator_gb: Measured
    cuda_graphs_gb: Measured


class CpuGeneric(Value):
    """Any machine that runs the embedded engine."""

    read_gb_per_s: Measured
    bf16_tflops: Measured
    engine_memory_gb: Measured


class Hardware(Value):
    """Everything in `hardware.yaml`."""

    boxes: tuple[Box, ...]
    vendors: tuple[Vendor, ...]
    confusables: tuple[tuple[str, str], ...]
    """PCI ids of what is not a Spark, and what it is."""
    ceilings: Ceilings
    links: tuple[Link, ...]
    memory: Memory
    cpu_generic: CpuGeneric

    def link(self, link_id: str) -> Link:
        """The link of that id.

        Raises:
            KeyError: there is none.
        """
        return {link.id: link for link in self.links}[link_id]


def read_hardware(text: str, name: str = FILE) -> Hardware:
    """The hardware in `text`.

    Raises:
        SpecError: something is wrong; `what` names file, entry and field.
    """
    data = parse(name, text, frozenset(Hardware.model_fields))
    confusables = frozen(data["confusables"])
    if not isinstance(confusables, dict):
        raise SpecError(f"knowledge/{name}: confusables: expected a mapping of PCI ids to names")
    return Hardware(
        boxes=entries(name, "boxes", data["boxes"], Box),
        vendors=entries(name, "vendors", data["vendors"], Vendor),
        confusables=tuple(confusables.items()),
        ceilings=entry(name, "ceilings", data["ceilings"], Ceilings),
        links=entries(name, "links", data["links"], Link),
        memory=entry(name, "memory", data["memory"], Memory),
        cpu_generic=entry(name, "cpu_generic", data["cpu_generic"], CpuGeneric),
    )


@cache
def hardware() -> Hardware:
    """The packaged hardware facts.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return read_hardware(packaged(FILE))
