"""Values that the tests of `controlplane` and of the packages around it share."""

from sparkfleet.controlplane.api.api_models import JoinRequest
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory


def deployment(name="tiny", **fields):
    return Deployment(name=name, model="builtin:tiny", **fields)


def inventory(*names, cable=False):
    """A fleet of this machine alone, or of Sparks of these names; two of them may have a cable."""
    key = "SHA256:" + "A" * 43
    sparks = {
        name: {"address": f"10.0.0.{number}", "user": "nvidia", "host_key": key}
        for number, name in enumerate(names, start=1)
    }
    nodes = sparks if len(names) > 1 else {"this": {"address": "local"}}
    fleet = {"fleet": "home", "head": next(iter(nodes)), "nodes": nodes}
    if cable:
        ends = ({"netdev": "enp1s0f1np1", "rdma": "rocep1s0f1", "address": f"10.1.0.{n}/24"} for n in (1, 2))
        fleet["links"] = ({"nodes": names, "rails": (tuple(ends),)},)
    return Inventory.model_validate(fleet)


def plan(name="tiny", groups=1, mid=0.0, high=1.0, rungs=1, **fields):
    fields = {"engine": "vllm", "context": 512, "concurrency": 4, "device": "cpu", **fields}
    candidate = Candidate(
        model="builtin:tiny",
        shape=GroupShape(nodes=("this",)),
        engine_version="0.32.0+cpu",
        **fields,
    )
    prediction = Prediction(memory_bytes_per_rank=Band(low=0.0, mid=mid, high=max(mid, high)))
    rung = Rung(candidate=candidate, prediction=prediction, reason="the only one")
    return DeploymentPlan(
        name=name, objective="interactive", groups=(GroupPlan(ladder=(rung,) * rungs),) * groups
    )


def joining(paths):
    """The request with which node b joins a head that does not answer."""
    return JoinRequest(
        fleet="home",
        state_dir=str(paths.root),
        node="b",
        host="127.0.0.1",
        ray="127.0.0.1:1",
        ray_token="",
        engine_secret="",
    )
