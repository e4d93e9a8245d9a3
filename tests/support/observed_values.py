"""A node with every reading, and a plan with every prediction."""

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.hostfacts.gpu import GpuState
from sparkfleet.hostfacts.kernel_log import KernelLog
from sparkfleet.hostfacts.memory import MemoryMap
from sparkfleet.hostfacts.network.rdma import RdmaCounters
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.telemetry.node_readings import DiskSpace, NodeReadings, RailReading, SlowReadings
from sparkfleet.telemetry.rank_memory import RankMemory
from sparkfleet.units import GIB

BAND = Band(low=800.0, mid=1000.0, high=1200.0, provenance=Provenance.CALIBRATED)
NODE = NodeReport(
    name="spark1",
    joined=True,
    memory_total=128 * GIB,
    memory_available=30 * GIB,
    boot="b",
    readings=NodeReadings(
        memory=MemoryMap(
            total=128 * GIB, free=20 * GIB, available=30 * GIB, page_cache=GIB, swap_total=GIB, swap_used=5, named=100 * GIB
        ),
        pressure={"memory": {"some": 0.1, "full": 0.05}},
        rails=(
            RailReading(
                netdev="r0",
                up=True,
                carrier_changes=2,
                received=3,
                sent=4,
                errors={"rx_errors": 1},
                rdma="roce0",
                rdma_counters=RdmaCounters(tx_bytes=5, rx_bytes=6, others={"out_of_sequence": 7}),
            ),
        ),
        slow=SlowReadings(
            gpus=(
                GpuState(
                    name="NVIDIA GB10", driver="580", temperature_c=60.0, power_w=45.5, utilization_percent=96.0,
                    sm_clock_mhz=2400.0, most_sm_clock_mhz=3003.0, throttled=("hardware thermal",),
                ),
            ),
            temperature_c=70.0,
            disks={"root": DiskSpace(free=1, total=2)},
            kernel=KernelLog(
                out_of_gpu_memory=3, xids=(79, 79, 13), slot_power=False, out_of_gpu_memory_at=50.4, xids_at={"79": 60.0}
            ),
            kernel_log_readable=True,
            booted=1000.0,
            ranks=(RankMemory(deployment="m", generation=1, replica=0, rank=0, bytes=49 << 30),),
        ),
    ),
)  # fmt: skip


def predicted(plan: DeploymentPlan) -> DeploymentPlan:
    """The plan with a prediction that has every number."""
    prediction = Prediction(
        memory_bytes_per_rank=BAND, ttft_ms=BAND, decode_tps_per_request=BAND, decode_tps_aggregate=BAND, prefill_tps=BAND,
        check_ttft_ms=BAND, check_decode_tps=BAND, accepted=2.5,
    )  # fmt: skip
    group = plan.groups[0]
    rungs = tuple(rung.model_copy(update={"prediction": prediction}) for rung in group.ladder)
    return plan.model_copy(update={"groups": (group.model_copy(update={"ladder": rungs}),)})
