"""Statuses of a fleet of two Sparks, as a controller reports them."""

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.group.report import GroupPhase, GroupReport, RankReport
from sparkfleet.hostfacts.memory import MemoryMap
from sparkfleet.perf.prediction import Band, Prediction, Speculation
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung
from sparkfleet.telemetry.node_readings import NodeReadings, SlowReadings
from sparkfleet.telemetry.rank_memory import RankMemory
from sparkfleet.units import GIB

NOW = 1_795_176_000.0
PAIR = ("spark1", "spark2")


def rung(nodes=PAIR, method="eagle3"):
    candidate = Candidate(
        model="nvidia/Qwen3-235B-A22B-NVFP4", shape=GroupShape(nodes=nodes, tp=len(nodes)), engine="vllm",
        engine_version="0.32.0", quant="nvfp4", context=32768, concurrency=16,
        speculation=Speculation(method=method, tokens=3),
    )  # fmt: skip
    prediction = Prediction(
        memory_bytes_per_rank=Band(low=40.0 * GIB, mid=45.0 * GIB, high=50.0 * GIB),
        check_decode_tps=Band(low=21.0, mid=24.0, high=28.0),
    )
    return Rung(candidate=candidate, prediction=prediction, reason="")


def report(replica=0, phase=GroupPhase.READY, **fields):
    told = {"measured": {"ttft_ms": 380.4, "decode_tps": 24.74}} if phase is GroupPhase.READY else {}
    ranks = (RankReport(rank=0, node="spark1", pid=7),)
    return GroupReport(
        **{"deployment": "big", "generation": 3, "replica": replica, "phase": phase, "node": "spark1",
           "engine": "vLLM 0.32.0", "since": NOW - 5, "ranks": ranks, **told, **fields}
    )  # fmt: skip


def holding(memory):
    """Nodes, each with a rank of `big` that takes so many bytes."""
    return tuple(
        NodeReport(
            name=name, joined=True, memory_total=120 << 30, memory_available=34 << 30,
            readings=NodeReadings(
                memory=MemoryMap.model_construct(),
                slow=SlowReadings(ranks=(
                    RankMemory(deployment="big", generation=3, replica=0, rank=rank, bytes=held),
                )),
            ),
        )
        for rank, (name, held) in enumerate(memory.items())
    )  # fmt: skip


def deployment(*groups, planned=1, state="ready", detail=""):
    ladder = (rung(), rung(method="ngram"))
    plan = DeploymentPlan(name="big", objective="interactive", groups=(GroupPlan(ladder=ladder),) * planned)
    return DeploymentStatus(
        name="big", generation=3, state=state, detail=detail, who="me", since=0.0, plan=plan, groups=groups
    )


def fleet(*deployments, **fields):
    return FleetStatus(
        **{"fleet": "home", "sparkfleet": "0.1.0", "endpoint": "http://192.168.1.20:8000/v1", "gateways": (),
           "deployments": deployments, "last_event": 3, **fields}
    )  # fmt: skip
