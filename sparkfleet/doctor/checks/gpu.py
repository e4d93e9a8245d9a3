"""The GPU: present, with one driver on all nodes, and at full speed."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.checks.agreement import differing, values
from sparkfleet.doctor.findings import CheckFault, error, not_known, warning
from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.gpu import LOST, SLOWDOWNS, GpuState
from sparkfleet.hostfacts.machine import MachineIdentity

SPARK_CAPABILITY = "12.1"
UNPLUG = "If that does not help: shut down and unplug the power for five minutes."


@node_check("gpu-there", "the GPU answers its driver", source="sparkbase wiki: Xid 119 after a bad update")
def gpu_there(node: NodeSnapshot, identity: MachineIdentity) -> Iterator[CheckFault]:
    """Reports a GPU that is lost, `No devices were found` on a machine with a GPU, and an `nvidia-smi` that hangs."""
    is_spark = recognise(identity, node.pci or ()).kind is MachineKind.SPARK
    if node.gpus is None:
        why = node.unknown.get("gpus", "its gpus was not read")
        if is_spark and "did not end within" in why:
            yield error(
                f"{node.name}: {why}: the GPU's driver hangs",
                means="No engine can start on this node until it answers.",
                do=("sudo dmesg | grep -E 'NVRM|Xid'", "sudo reboot   # by its power button if that hangs"),
            )
        elif LOST in why:
            yield error(
                f"{node.name}: {why}",
                means="The driver has lost the GPU (Xid 79). No engine can start on this node until it is found again.",
                do=("journalctl -k -b -g 'NVRM'", "sudo reboot", UNPLUG),
            )
        else:
            yield not_known(f"the GPU answers its driver: not known of {node.name}, because {why}")
    elif not node.gpus and is_spark:
        yield error(
            f"nvidia-smi finds no GPU on {node.name}",
            means="The driver could not start the GPU: its firmware (GSP) does not answer. The usual cause is an update.",
            do=(
                "sudo dmesg | grep -E 'NVRM|Xid'",
                "sudo apt full-upgrade && sudo reboot",
                UNPLUG,
            ),
        )


@node_check("gpu-capability", "the GPU is a GB10 (compute capability 12.1)")
def gpu_capability(node: NodeSnapshot, gpus: tuple[GpuState, ...]) -> Iterator[CheckFault]:
    """Reports another GPU than SM 12.1, for which images are chosen."""
    for gpu in gpus:
        if "GB10" in gpu.name and gpu.compute_capability not in (None, SPARK_CAPABILITY):
            yield warning(
                f"{gpu.name} of {node.name} has compute capability {gpu.compute_capability}, not {SPARK_CAPABILITY}",
                means="Images that are known to work on a Spark may have no code for it.",
                do="nvidia-smi -q | head -40   # then report it to sparkfleet's issue tracker",
            )


def _driver(node: NodeSnapshot) -> str | None:
    if node.gpus:
        return node.gpus[0].driver
    return node.identity.driver_module or None if node.identity else None


@fleet_check(
    "driver-same", "all nodes have one NVIDIA driver", source="chosen here: ranks of a group run one stack"
)
def driver_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """An engine over two nodes needs one driver on both."""
    if differences := differing(values(fleet, _driver)):
        yield error(
            f"NVIDIA drivers differ: {differences}",
            means="Engines over several nodes hang or fail between different drivers, and measurements are not comparable.",
            do=(
                "sudo apt update && sudo apt full-upgrade && sudo reboot   # on all nodes",
                "apt-cache policy 'nvidia-driver-*-open'   # shows packages that are held back",
            ),
        )


@node_check(
    "driver-torn",
    "kernel module and libraries of the driver have one version",
    rules=("torn-driver-upgrade",),
    source="knowledge/rules/rules.yaml torn-driver-upgrade",
)
def driver_torn(node: NodeSnapshot, identity: MachineIdentity) -> Iterator[CheckFault]:
    """Reports an update that still needs a reboot."""
    module, library = identity.driver_module, node.gpus[0].driver if node.gpus else ""
    torn = "version mismatch" in node.unknown.get("gpus", "")
    if torn or (module and library and module != library):
        versions = f"module {module or '?'}, libraries {library or 'another'}"
        yield error(
            f"{node.name}: driver version mismatch: {versions}",
            means="A driver upgrade awaits a reboot. Until then CUDA does not start.",
            do=("sudo apt full-upgrade", "sudo reboot   # all nodes together", "nvidia-spark-ota-check"),
        )


@node_check(
    "power-wedge",
    "clock and power of the GPU follow its load",
    rules=("power-wedge",),
    source="knowledge/rules/rules.yaml power-wedge",
)
def power_wedge(node: NodeSnapshot, gpus: tuple[GpuState, ...]) -> Iterator[CheckFault]:
    """Reports a GPU that is busy, cold and slow, without a reason to throttle."""
    for gpu in gpus:
        busy, power, clock = gpu.utilization_percent, gpu.power_w, gpu.sm_clock_mhz
        if busy is None or power is None or clock is None:
            yield not_known(
                f"{node.name}: clock and power are not known, because nvidia-smi does not report them"
            )
        elif (
            busy >= thresholds.WEDGED_UTIL_PERCENT
            and power < thresholds.WEDGED_POWER_W
            and clock < thresholds.WEDGED_CLOCK_MHZ
        ):
            yield error(
                f"{node.name}: power controller wedged: {busy:.0f} % busy at {power:.1f} W and {clock:.0f} MHz",
                means="A busy GB10 draws 35 to 90 W at about 2400 MHz. The USB-C power controller is stuck:"
                " everything is three to four times too slow. A reboot does not help.",
                do=(
                    "sudo poweroff",
                    "Unplug the supply at both ends for five minutes; hold the power button ten seconds.",
                    "Plug it in, boot, run `sparkfleet doctor` again. If the fault returns, have the unit replaced.",
                ),
                throttled=", ".join(gpu.throttled or ()) or "no reason given",
            )


@node_check("gpu-throttled", "the GPU is not throttled", source="nvidia-smi: clocks_event_reasons")
def gpu_throttled(node: NodeSnapshot, gpus: tuple[GpuState, ...]) -> Iterator[CheckFault]:
    """Reports slowdowns by heat or the power supply: the software power cap is normal."""
    for gpu in gpus:
        reasons = sorted(SLOWDOWNS.intersection(gpu.throttled or ()))
        hot = gpu.temperature_c is not None and gpu.temperature_c > thresholds.HOT_GPU_C
        if reasons or hot:
            yield warning(
                f"{node.name}: the GPU is throttled: {', '.join(reasons) or 'hot'}"
                + (f", {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""),
                means="Engines run slower than predicted; Sparks have powered off under long prefills.",
                do=("Improve the airflow; do not stack units.", "sudo nvidia-smi -lgc 200,2150"),
            )
        elif gpu.throttled is None:
            yield not_known(
                f"{node.name}: throttling is not known, because nvidia-smi does not report its reasons"
            )


CHECKS: tuple[Check, ...] = (
    gpu_there,
    gpu_capability,
    driver_same,
    driver_torn,
    power_wedge,
    gpu_throttled,
)
