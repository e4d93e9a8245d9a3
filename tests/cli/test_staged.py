from sparkfleet.cli.staged import fallbacks_of, needs_of
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

MODEL = "org/model"
IMAGE = "registry.test/vllm@sha256:" + "a" * 64
OTHER = "registry.test/sglang@sha256:" + "b" * 64


def rung(*nodes, image=IMAGE, draft=None, engine="vllm"):
    candidate = Candidate(
        model=MODEL,
        shape=Shape(nodes=nodes, tp=len(nodes)),
        engine=engine,
        engine_version="1",
        runtime="container",
        image=image,
        speculation=Speculation(method="eagle3", tokens=3, draft=draft) if draft else Speculation(),
        context=1024,
        concurrency=1,
    )
    prediction = Prediction(memory_bytes_per_rank=Band(low=1, mid=1, high=1))
    return Rung(candidate=candidate, prediction=prediction, reason="")


def plan(*rungs):
    return DeploymentPlan(name="it", objective="interactive", groups=(GroupPlan(ladder=rungs),))


def told(needs):
    return [(need.wanted.kind, need.wanted.name, need.nodes) for need in needs]


def test_a_first_rung_needs_model_draft_and_image_on_each_of_its_nodes():
    found = needs_of([plan(rung("a", "b", draft="org/draft"), rung("c"))])
    assert told(found) == [
        ("hub", MODEL, ("a", "b")),
        ("hub", "org/draft", ("a", "b")),
        ("image", IMAGE, ("a", "b")),
    ]


def test_a_thing_that_two_deployments_need_is_brought_once():
    assert told(needs_of([plan(rung("a")), plan(rung("b"))])) == [
        ("hub", MODEL, ("a", "b")),
        ("image", IMAGE, ("a", "b")),
    ]


def test_lower_rungs_have_the_same_things_where_they_are_not_yet():
    found = fallbacks_of([plan(rung("a"), rung("b"), rung("a", "b", "c"))])
    assert told(found) == [("hub", MODEL, ("b", "c")), ("image", IMAGE, ("b", "c"))]


def test_what_only_a_lower_rung_needs_is_not_fetched():
    found = fallbacks_of(
        [plan(rung("a"), rung("a", image=OTHER, engine="sglang"), rung("a", draft="org/draft"))]
    )
    assert told(found) == []
