"""Unified memory: no leftovers of other processes, and enough of it free for an engine's start."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.checks.agreement import differing
from sparkfleet.doctor.findings import CheckFault, error, not_known, note, warning
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.gpu import GpuProcess
from sparkfleet.hostfacts.kernel_log import KernelLog
from sparkfleet.hostfacts.memory import FreeBlocks, Kernel, MemoryMap
from sparkfleet.hostfacts.processes import HoldingProcess
from sparkfleet.knowledge.hardware import memory_alike, memory_size
from sparkfleet.remote.page_cache import DROP_BY_HAND
from sparkfleet.units import GB, GIB, gib, gib_of


def _ours(node: NodeSnapshot) -> frozenset[int]:
    return frozenset(one.pid for one in node.processes or () if one.ours)


def strangers(node: NodeSnapshot, found: tuple[GpuProcess, ...]) -> list[GpuProcess]:
    """Processes on the GPU that sparkfleet did not start."""
    ours = _ours(node)
    return [one for one in found if one.pid not in ours]


def _end(pid: int, process: HoldingProcess | None) -> tuple[str, ...]:
    """Commands that end a process: one of root's is usually a container's, which docker may start again."""
    show = f"ps -o user,etime,args -p {pid}"
    if process is None or process.uid:
        return (show, f"kill {pid}   # if it is not needed")
    return (
        show,
        "docker ps   # a container's: `docker stop NAME` ends it, and `docker inspect NAME | sparkfleet convert -` makes a"
        " deployment of it before",
        f"sudo kill {pid}   # if it is not needed, and in no container",
    )


@node_check(
    "memory-leftover",
    "no leftover process uses GPU memory",
    source="vllm-project/vllm#48140: a start needs its share free",
)
def memory_leftover(node: NodeSnapshot, gpu_processes: tuple[GpuProcess, ...]) -> Iterator[CheckFault]:
    """Reports GPU processes that sparkfleet did not start: no plan accounts for their memory."""
    held = [one for one in gpu_processes if one.memory is None or one.memory >= thresholds.LEFTOVER_GB * GB]
    if held and node.processes is None:
        pids = ", ".join(str(one.pid) for one in held)
        yield not_known(
            f"{node.name}: whether sparkfleet started what uses the GPU (process {pids}) is not known, because the"
            " processes of the node could not be read"
        )
        return
    users = {one.pid: one for one in node.processes or ()}
    for one in strangers(node, tuple(held)):
        size = gib(one.memory, exact=True) if one.memory is not None else "an unknown amount"
        yield error(
            f"{node.name}: process {one.pid} ({one.name or 'unnamed'}) holds {size} of unified memory",
            means="sparkfleet did not start it. Engines lack that memory; if it runs out, the host freezes.",
            do=_end(one.pid, users.get(one.pid)),
            command=users[one.pid].command if one.pid in users else "",
        )


@node_check("memory-hogs", "no other process uses much memory")
def memory_hogs(
    node: NodeSnapshot, memory: MemoryMap, processes: tuple[HoldingProcess, ...]
) -> Iterator[CheckFault]:
    """Reports processes without the GPU that use a tenth of all memory."""
    for one in processes:
        if not one.ours and one.resident > memory.total // 10:
            yield warning(
                f"{node.name}: process {one.pid} holds {gib(one.resident, exact=True)} of unified memory",
                means="CPU and GPU share this memory: engines get that much less.",
                do=_end(one.pid, one),
                command=one.command,
            )


@node_check(
    "memory-retained",
    "the driver keeps no memory without a process",
    rules=("driver-retained-pool",),
    source="knowledge/rules/rules.yaml driver-retained-pool",
)
def memory_retained(
    node: NodeSnapshot, memory: MemoryMap, gpu_processes: tuple[GpuProcess, ...]
) -> Iterator[CheckFault]:
    """Reports memory that belongs neither to the kernel nor to a process on the GPU."""
    kept = memory.unaccounted - sum(one.memory or 0 for one in gpu_processes)
    if any(one.memory is None for one in gpu_processes) or kept <= thresholds.UNACCOUNTED_GB * GB:
        return
    yield error(
        f"{node.name}: {gib(kept, exact=True)} of unified memory belong to no process",
        means="The driver did not free the memory of an ended CUDA process; engines get that much less.",
        do=(
            "Wait two minutes and run `sparkfleet doctor` again.",
            "sudo reboot   # if it stays",
        ),
        unaccounted_gib=f"{memory.unaccounted / GIB:.1f}",
    )


@node_check(
    "memory-free",
    "memory is free for engines",
    source="luisefigueroa/pulsar-gb10-vllm-stack: 100 to 105 GiB for an engine",
)
def memory_free(node: NodeSnapshot, memory: MemoryMap) -> Iterator[CheckFault]:
    """Reports less available memory than the host needs."""
    if memory.available < thresholds.AVAILABLE_GIB * GIB and memory.total > 32 * GIB and not _ours(node):
        yield warning(
            f"{node.name}: {gib_of(memory.available, memory.total)} are available",
            means="A Spark that runs out of memory does not kill a process: it freezes, SSH included.",
            do="ps -eo pid,rss,args --sort=-rss | head",
        )


@node_check(
    "page-cache",
    "the page cache leaves room for a start",
    rules=("vllm-memfree-startup-check",),
    source="knowledge/rules/rules.yaml vllm-memfree-startup-check",
)
def page_cache(node: NodeSnapshot, memory: MemoryMap) -> Iterator[CheckFault]:
    """Reports a large page cache: CUDA counts it as used; `up` drops it before each cold start."""
    if memory.page_cache > thresholds.PAGE_CACHE_GIB * GIB and memory.total > 32 * GIB:
        yield note(
            f"{node.name}: {gib(memory.page_cache)} of files are cached in memory",
            means="Engines count cached files as used memory and may refuse to start.",
            do=DROP_BY_HAND,
        )


@node_check(
    "memory-fragmented",
    "free memory is in large blocks",
    source="FujitsuPolycom/sparkring issue 173 and pull request 202: 200 blocks of 32 MiB before a load",
)
def memory_fragmented(node: NodeSnapshot, memory: MemoryMap, free_blocks: FreeBlocks) -> Iterator[CheckFault]:
    """Reports free memory in small pieces, if most of the node's memory is free: beside an engine it always is."""
    large = free_blocks.large
    if large is None or free_blocks.free < memory.total / 2 or large >= thresholds.LARGE_BLOCKS_GIB * GIB:
        return
    yield warning(
        f"{node.name}: {gib(free_blocks.free)} of memory are free, {gib(large)} of it in blocks of 16 MiB or more",
        means="Memory is fragmented, as after days of serving: weights load ten times slower, or the driver runs out of"
        " memory (NV_ERR_NO_MEMORY) and the node freezes.",
        do="sudo reboot",
    )


@node_check("swap", "swap cannot freeze the host", rules=("swap-thrash",),
            source="knowledge/rules/rules.yaml swap-thrash")  # fmt: skip
def swap(node: NodeSnapshot, memory: MemoryMap, kernel: Kernel) -> Iterator[CheckFault]:
    """Reports swap with the kernel's default swappiness."""
    if memory.swap_total and (kernel.swappiness or 0) > thresholds.SWAPPINESS:
        yield warning(
            f"{node.name}: {gib(memory.swap_total)} of swap with vm.swappiness {kernel.swappiness}",
            means="When memory runs out, the host freezes for minutes before anything is killed.",
            do=(
                "sudo swapoff -a   # until the next boot",
                "echo 'vm.swappiness=10' | sudo tee /etc/sysctl.d/90-sparkfleet.conf && sudo sysctl --system",
            ),
            swap_used_gib=f"{memory.swap_used / GIB:.1f}",
        )


@node_check("memory-pressure", "no process waits for memory", source="chosen here: PSI full avg10")
def memory_pressure(node: NodeSnapshot, kernel: Kernel) -> Iterator[CheckFault]:
    """PSI."""
    if kernel.memory_pressure is None:
        yield not_known(
            f"{node.name}: memory pressure is not known, because the kernel has no /proc/pressure/memory"
        )
    elif kernel.memory_pressure > thresholds.PRESSURE_PERCENT:
        yield error(
            f"{node.name}: processes waited for memory {kernel.memory_pressure:.0f} % of the last ten seconds",
            means="The host is about to freeze.",
            do="Stop the newest engine now: `sparkfleet down`, or `kill` the largest process.",
        )


@node_check(
    "gpu-log",
    "the kernel's log has no GPU errors",
    rules=("nv-err-no-memory-wedge",),
    source="kernel log: NVRM, Xid",
)
def gpu_log(node: NodeSnapshot, kernel_log: KernelLog) -> Iterator[CheckFault]:
    """Reports NV_ERR_NO_MEMORY and Xids since boot."""
    if kernel_log.out_of_gpu_memory:
        yield warning(
            f"{node.name}: the driver ran out of memory {kernel_log.out_of_gpu_memory} times since boot (NV_ERR_NO_MEMORY)",
            means="This precedes a freeze of the whole host.",
            do=(
                "Keep 8 to 10 GiB free: a lower memory fraction, a shorter context.",
                "sudo reboot   # frees the driver's memory",
            ),
        )
    if kernel_log.xids:
        yield warning(
            f"{node.name}: GPU errors since boot: Xid {', '.join(str(one) for one in dict.fromkeys(kernel_log.xids))}",
            means="Xid 79: GPU fell off the bus; 119: firmware does not answer; 43, 31, 13: an engine's CUDA kernel failed.",
            do="journalctl -k -b -g 'NVRM: Xid'",
        )


@fleet_check(
    "memory-equal",
    "joined nodes have memory of one size",
    source="https://build.nvidia.com/spark/vllm-cluster/advanced: two Sparks of the same memory size",
)
def memory_equal(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports pairs, and nodes of one switch, of unequal memory: a group over them has the room of the smallest."""
    joined: dict[str, list[str]] = {}
    for link in fleet.links:
        joined.setdefault(link.switch or link.name, []).extend(link.nodes)
    for name, nodes in joined.items():
        totals = {node: memory.total for node in nodes if (memory := fleet.node(node).memory) is not None}
        if memory_alike(list(totals.values())):
            continue
        sizes: dict[str, list[str]] = {}
        for node, total in totals.items():
            sizes.setdefault(memory_size(total), []).append(node)
        yield note(
            f"{name} joins nodes of unequal memory: {differing(sizes)}",
            means="A model that is split over both sizes has the room of the smallest node on each. NVIDIA pairs Sparks of"
            " one size. A deployment on one node, or one per size, uses all of it.",
            do="sparkfleet plan FILE   # prefers nodes of one size, and names what a group over both cannot use",
        )


CHECKS: tuple[Check, ...] = (
    memory_leftover,
    memory_hogs,
    memory_retained,
    memory_free,
    page_cache,
    memory_fragmented,
    swap,
    memory_pressure,
    memory_equal,
    gpu_log,
)
