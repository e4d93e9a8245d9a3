"""Rungs of a ladder from few words."""

from sparkfleet.perf.prediction import Band, Prediction, Speculation
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung


def rung(*nodes, method="none", draft=None, tps=None, **fields):
    """A rung on these nodes; `tps` is its predicted rate of one request."""
    tokens = 0 if method == "none" else 3
    candidate = Candidate(
        shape=GroupShape(nodes=nodes, tp=len(nodes)),
        speculation=Speculation(method=method, tokens=tokens, draft=draft),
        **{
            "model": "org/model",
            "engine": "vllm",
            "engine_version": "1",
            "context": 1024,
            "concurrency": 1,
            **fields,
        },
    )
    rate = Band(low=0.0, mid=tps, high=100.0) if tps else None
    memory = Band(low=0.0, mid=1.0, high=2.0)
    prediction = Prediction(memory_bytes_per_rank=memory, decode_tps_per_request=rate)
    return Rung(candidate=candidate, prediction=prediction, reason="")


def sglang_rung(method, tps=None, node="spark1"):
    """A rung of SGLang with a speculative method."""
    fields = {"engine": "sglang", "engine_version": "0.5.12", "context": 512, "concurrency": 4}
    return rung(node, method=method, tps=tps, **fields)


def plan_of(*ladder):
    """A plan of one group with these rungs."""
    return DeploymentPlan(name="it", objective="interactive", groups=(GroupPlan(ladder=ladder),))
