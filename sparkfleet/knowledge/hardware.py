"""Hardware of the DGX Spark and its best published measurements: `hardware.yaml`, checked on load."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Annotated

from pydantic import BeforeValidator

from sparkfleet.knowledge.data_file import DataFile, Date, MeasuredRange, Sources, UniqueEntries, pairs
from sparkfleet.units import GB
from sparkfleet.values import Value

MEMORY_ALIKE = 0.05
"""Share of the larger memory by which two nodes of one size may differ: 128 GB boxes are published with 119 to 121.7 GiB."""


class SparkModel(Value):
    """A kind of Spark, by its memory."""

    id: str
    name: str
    pci_ids: tuple[str, ...]
    """`vendor:device` of the GPU as lspci prints it."""
    memory_total_gb: MeasuredRange
    """MemTotal, GB (1e9 bytes)."""
    sources: Sources
    date: Date

    @property
    def size(self) -> str:
        """Nominal memory: "128 GB"."""
        return self.name.rpartition(", ")[2]


class Vendor(Value):
    """A name under which the same board is sold."""

    id: str
    name: str
    dmi: tuple[str, ...]
    """Globs on the DMI product name."""
    note: str = ""
    sources: Sources
    date: Date


class SparkCeilings(Value):
    """Highest published figures of one Spark."""

    read_gb_per_s: MeasuredRange
    bf16_tflops: MeasuredRange
    fp8_tflops: MeasuredRange
    fp4_tflops: MeasuredRange


class LinkClass(Value):
    """A kind of connection between two nodes."""

    id: str
    name: str
    latency_us: MeasuredRange
    """One small all-reduce on an idle link."""
    gb_per_s: MeasuredRange
    """Bus bandwidth of a large collective."""


class MemoryOverheads(Value):
    """Memory used beside the model, GB (1e9 bytes)."""

    idle_available_gb: MeasuredRange
    host_reserve_gb: MeasuredRange
    nccl_communicator_gb: MeasuredRange
    cuda_graphs_gb: MeasuredRange


class LoadingRates(Value):
    """Rates of weight files from the disk into an engine, GB/s (1e9 bytes)."""

    mapped_gb_per_s: MeasuredRange
    """Files that are mapped (mmap), as engines do by themselves."""
    read_gb_per_s: MeasuredRange
    """Files that are read as a whole."""
    direct_gb_per_s: MeasuredRange
    """Files that llama.cpp reads without mmap."""


class EngineStart(Value):
    """Parts of an engine's start on a Spark beside its weights, seconds."""

    engine_s: MeasuredRange
    """Its container, process and communicators."""
    kernels_first_s: MeasuredRange
    """Kernels that it compiles and tunes, and its profiling, with empty caches."""
    kernels_later_s: MeasuredRange
    """The same with the caches of an earlier start."""
    warm_up_s: MeasuredRange
    """CUDA graphs and first runs."""


class KvDisk(Value):
    """KV blocks that come back from a node's disk, GB/s (1e9 bytes)."""

    read_gb_per_s: MeasuredRange


class CpuGeneric(Value):
    """Any machine that runs vLLM's CPU build."""

    read_gb_per_s: MeasuredRange
    bf16_tflops: MeasuredRange
    engine_memory_gb: MeasuredRange


class Hardware(Value):
    """Contents of `hardware.yaml`."""

    boxes: UniqueEntries[SparkModel]
    gpu_names: tuple[str, ...]
    """Globs on the name of the GPU that everything known here is about."""
    vendors: UniqueEntries[Vendor]
    confusables: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)]
    """PCI ids of other machines → their names."""
    ceilings: SparkCeilings
    links: UniqueEntries[LinkClass]
    memory: MemoryOverheads
    loading: LoadingRates
    starts: dict[str, EngineStart]
    """By engine; nothing is known of one that is missing."""
    kv_disk: KvDisk
    cpu_generic: CpuGeneric

    def link(self, link_id: str) -> LinkClass:
        """The link of that id.

        Raises:
            KeyError: there is none.
        """
        return {link.id: link for link in self.links}[link_id]


HARDWARE = DataFile("hardware.yaml", Hardware)


def hardware() -> Hardware:
    """The packaged hardware facts."""
    return HARDWARE.content


def is_known_gpu(name: str) -> bool:
    """True for the GPU of a DGX Spark. Memory, speed, images and rules of any other are not known."""
    return any(fnmatch(name, pattern) for pattern in hardware().gpu_names)


def memory_size(total: int) -> str:
    """The size under which a node with so many bytes of memory is sold ("64 GB"); the bytes themselves if none is known."""
    near = [
        box for box in hardware().boxes if box.memory_total_gb.low <= total / GB <= box.memory_total_gb.high
    ]
    return near[0].size if near else f"{total / GB:.0f} GB"


def memory_alike(totals: Sequence[int]) -> bool:
    """True if nodes with these bytes of memory are of one size."""
    return not totals or min(totals) >= (1 - MEMORY_ALIKE) * max(totals)
