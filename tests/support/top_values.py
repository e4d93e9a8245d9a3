"""A fleet of two Sparks as `sparkfleet top` reads it."""

import asyncio

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.controlplane.state.store import Event
from sparkfleet.errors import ControlError, UnreadableStateError
from sparkfleet.fleet.deployments import FleetCondition, FleetOverview
from sparkfleet.group.report import GroupPhase, GroupReport, RankReport
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rejection, Rung
from sparkfleet.units import GIB

NOW = 1_795_176_000.0
PAIR = ("spark1", "spark2")
HOSTILE = "loading \x1b]0;hurt\x07 layers [bold]5[/bold]"


def plan():
    """Two rungs, one rejected candidate."""
    rungs = tuple(
        Rung(
            candidate=Candidate(
                model="nvidia/Qwen3-235B-A22B-NVFP4", shape=GroupShape(nodes=PAIR, tp=2), engine="vllm",
                engine_version="0.32.0", quant="nvfp4", context=context, concurrency=16,
            ),
            prediction=Prediction(
                memory_bytes_per_rank=Band(low=0.0, mid=1.0, high=2.0),
                check_decode_tps=Band(low=21.0, mid=24.0, high=28.0),
            ),
            reason="fastest that fits",
        )
        for context in (32768, 16384)
    )  # fmt: skip
    rejected = (
        Rejection(what="SGLang 0.5 on spark1+spark2", reason="nobody has seen it start", rule="tried"),
    )
    return DeploymentPlan(
        name="big", objective="interactive", groups=(GroupPlan(ladder=rungs),), rejected=rejected
    )


def group(tokens=0.0, **fields):
    """A group over both nodes."""
    ranks = tuple(
        RankReport(rank=rank, node=node, pid=7, log_path=f"/x/{rank}.log") for rank, node in enumerate(PAIR)
    )
    return GroupReport(
        **{"deployment": "big", "generation": 3, "replica": 0, "phase": GroupPhase.READY, "node": "spark1",
           "engine": "vLLM 0.32.0", "since": NOW - 5, "ranks": ranks, "running": 3, "waiting": 1, "tokens": tokens,
           "measured": {"ttft_ms": 380.0, "decode_tps": 24.7}, **fields}
    )  # fmt: skip


def deployment(*groups, name="big", state="ready", detail=""):
    """A deployment with these groups."""
    return DeploymentStatus(
        name=name, generation=3, state=state, detail=detail, who="me", since=0.0, plan=plan(), groups=groups
    )


def overview(*deployments, lost=(), events=(), trouble=""):
    """The answer of a controller."""
    nodes = tuple(
        NodeReport(
            name=name, joined=name not in lost,
            **({} if name in lost else {"memory_total": 120 * GIB, "memory_available": 30 * GIB}),
        )
        for name in PAIR
    )  # fmt: skip
    status = FleetStatus(
        fleet="home", sparkfleet="1", endpoint="http://192.168.1.20:8000/v1", gateways=(), nodes=nodes,
        deployments=deployments, last_event=3, trouble=trouble,
    )  # fmt: skip
    return FleetOverview(FleetCondition.UP, status, recent=tuple(events))


def away():
    """Ray runs, and no controller answers."""
    unknown = FleetStatus(
        fleet="home", sparkfleet="", endpoint="", gateways=(), deployments=(), last_event=0,
        nodes=tuple(NodeReport(name=name, joined=False) for name in PAIR),
    )  # fmt: skip
    error = UnreadableStateError("The controller does not answer.", do="`sparkfleet doctor` looks closer.")
    return FleetOverview(FleetCondition.NO_CONTROLLER, unknown, error)


def event(number, kind="ready", message="started in 21 s"):
    """One of the group's events."""
    return Event(
        id=number, at=NOW, deployment="big", generation=3, subject="big/g3/0", kind=kind, message=message
    )


class Watched:
    """A fleet whose answer a test changes."""

    fleet = "home"

    def __init__(self, answer):
        self.answer = answer
        self.logs = {0: b"INFO started\nloading \x1b[31m", 1: b"rank one\n"}
        self.more = asyncio.Event()

    def last_start(self, plan):
        """No start is known."""

    async def overview(self):
        """The answer, or the error."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def log(self, name, replica, rank):
        """The log's beginning, and its end once there is more."""
        if name != "big":
            raise ControlError(f"{name} has no log yet.", do="Wait.")
        yield self.logs[rank]
        await self.more.wait()
        yield b"5 of 9\n"
        await asyncio.Event().wait()
