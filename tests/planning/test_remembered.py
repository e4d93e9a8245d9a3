from sparkfleet.planning.plan import (
    Band,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    Prediction,
    Rung,
    Shape,
    Speculation,
)
from sparkfleet.planning.remembered import Remembered, fingerprint, without_failed


def rung(method="none", node="spark1", **fields):
    candidate = Candidate(
        model="org/model",
        shape=Shape(nodes=(node,)),
        engine="vllm",
        engine_version="0.32.0",
        speculation=Speculation(method=method),
        **{"context": 512, "concurrency": 4, **fields},
    )
    memory = Band(low=0.0, mid=1.0, high=2.0)
    return Rung(candidate=candidate, prediction=Prediction(memory_bytes_per_rank=memory), reason="")


def plan(*rungs):
    return DeploymentPlan(name="m", objective="interactive", groups=(GroupPlan(ladder=rungs),))


def failed(rung, node="spark1"):
    return Remembered(fingerprint=fingerprint(rung.candidate), node=node, words="out of memory")


def test_what_did_not_start_here_is_not_tried_first_again():
    after = without_failed(plan(rung("mtp"), rung("ngram")), [failed(rung("mtp"))])
    assert [one.candidate.speculation.method for one in after.groups[0].ladder] == ["ngram"]
    (rejection,) = after.rejected
    assert "did not start here: out of memory" in rejection.reason


def test_another_node_or_another_setting_is_another_matter():
    for tried in (rung("mtp", node="spark2"), rung("mtp", context=256), rung("mtp", image="x@sha256:1")):
        assert without_failed(plan(tried, rung()), [failed(rung("mtp"))]).groups[0].ladder[0] == tried


def test_the_last_rung_stays():
    only = plan(rung("mtp"))
    assert without_failed(only, [failed(rung("mtp"))]).groups == only.groups


def test_what_else_is_known_of_a_group_stays():
    before = plan(rung("mtp"), rung("ngram"))
    group = before.groups[0].model_copy(update={"variant": 1, "vision": True})
    after = without_failed(before.model_copy(update={"groups": (group,)}), [failed(rung("mtp"))])
    assert after.groups == (group.model_copy(update={"ladder": group.ladder[1:]}),)


def test_without_failures_nothing_changes():
    whole = plan(rung("mtp"), rung())
    assert without_failed(whole, []) is whole
