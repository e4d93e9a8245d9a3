"""Properties of the choice over generated deployments: evidence, idle nodes, and the account of methods."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.published.evidence import EvidenceIndex, PublishedEvidence
from sparkfleet.planner.place.drafting import METHODS
from sparkfleet.planner.place.weight_containers import engines_for
from sparkfleet.planner.search import objective
from sparkfleet.planner.types.plan import Rung

FP8 = "Qwen/Qwen3.6-27B-FP8"
MODELS = (
    FP8, "Qwen/Qwen3.6-35B-A3B-FP8", "nvidia/Qwen3.8-27B-NVFP4", "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V4-Flash-0731", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "local-inference-lab/Qwen3.8-Flash-Next-NVFP4",
)  # fmt: skip

GENERATED = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

RUNS = st.builds(
    lambda method, engine, nodes, own, form, busy, sources: PublishedEvidence(
        model="qwen3.6-27b" if own else "another",
        family="dense-hybrid-5120x64",
        engine=engine,
        method=method,
        format=form,
        nodes=nodes,
        rows=2,
        sources=sources,
        alone=10.0,
        busy=busy,
    ),
    st.sampled_from(["none", "mtp", "dflash", "eagle3"]),
    st.sampled_from(["vllm", "sglang"]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from(["fp8", "nvfp4"]),
    st.sampled_from([0, 2]),
    st.sampled_from([("a/b",), ("a/b", "c/d"), ("a/b", "c/d", "e/f", "g/h", "i/j")]),
)
"""Published runs without a rate that would correct a prediction: they say only that somebody ran it."""


def _run(engine, sources):
    return PublishedEvidence(
        model="another", family="dense-hybrid-5120x64", engine=engine, method="none", format="fp8", nodes=1, rows=2,
        sources=sources, alone=10.0, busy=0,
    )  # fmt: skip


def rungs(made) -> dict[tuple[str, str], tuple[int, Rung]]:
    """Each engine and method of the ladder, with its place."""
    ladder = made.deployments[0].groups[0].ladder
    found = {}
    for at, rung in enumerate(ladder):
        method = rung.candidate.speculation.method
        found.setdefault((rung.candidate.engine, "mtp" if method == "nextn" else method), (at, rung))
    return found


@GENERATED
@given(
    runs=st.lists(RUNS, max_size=4),
    more=RUNS,
    wanted=st.sampled_from(["interactive", "throughput"]),
    nodes=st.sampled_from([1, 2]),
)
@example(
    runs=[_run("vllm", ("a/b",))] * 3 + [_run("sglang", ("a/b",))],
    more=_run("sglang", ("a/b", "c/d")),
    wanted="interactive",
    nodes=2,
)
def test_more_evidence_for_a_candidate_never_makes_it_lose(
    sparks, plan, ask, monkeypatch, runs, more, wanted, nodes
):
    """Neither its place in the ladder nor its worth falls: not of the choice only, of any candidate."""

    def planned(*published: PublishedEvidence):
        index = EvidenceIndex(published)
        monkeypatch.setattr(objective, "evidence", lambda: index)
        return rungs(plan(sparks(nodes), ask(FP8, objective=wanted, parallel={"tp": nodes})))

    before, after = planned(*runs), planned(*runs, more)
    candidate = (more.engine, more.method)
    assume(candidate in before)
    old_place, old = before[candidate]
    assert candidate in after
    new_place, new = after[candidate]
    assert new.worth >= old.worth * 0.999
    if old_place == 0:
        assert new_place == 0


@GENERATED
@given(
    model=st.sampled_from(MODELS),
    nodes=st.integers(1, 3),
    concurrency=st.sampled_from([1, 2, 8, 32]),
    context=st.sampled_from([8_192, 32_768, 131_072]),
    wanted=st.sampled_from(["interactive", "throughput"]),
)
@example(  # one published group of two is better than three predicted groups of one
    model="local-inference-lab/Qwen3.8-Flash-Next-NVFP4",
    nodes=2,
    concurrency=8,
    context=131_072,
    wanted="throughput",
)
def test_an_idle_node_never_makes_a_plan_slower(
    sparks, plan, ask, model, nodes, concurrency, context, wanted
):
    fields = {"objective": wanted, "concurrency": concurrency, "context": context}
    before, after = (plan(sparks(n, switch=True), ask(model, **fields)) for n in (nodes, nodes + 1))
    assume(not before.refused)
    assert not after.refused
    old, new = (made.deployments[0].groups[0].choice for made in (before, after))
    if wanted == "interactive":
        assert seconds(new) <= seconds(old) * 1.001
    else:
        assert new.worth >= old.worth * 0.999


def seconds(rung: Rung) -> float:
    """Of the answer that `interactive` is about."""
    return rung.prediction.ttft_ms.mid / 1000 + 256 / rung.prediction.decode_tps_per_request.mid


@GENERATED
@given(
    model=st.sampled_from(MODELS),
    nodes=st.integers(1, 4),
    concurrency=st.sampled_from([1, 4, 16, 64]),
    context=st.sampled_from([4_096, 65_536, 131_072]),
    wanted=st.sampled_from(["interactive", "throughput", "context"]),
    engine=st.sampled_from(["auto", "vllm", "sglang", "trtllm"]),
    content=st.sampled_from([None, "code", "agent", "prose"]),
)
def test_a_method_never_disappears(
    sparks, plan, ask, model, nodes, concurrency, context, wanted, engine, content
):
    """`--all` lists every method on every engine, taken or with its reason, whatever is asked for."""
    fields = {"concurrency": concurrency, "context": context, "objective": wanted, "engine": engine}
    made = plan(sparks(nodes, switch=True), ask(model, **fields | ({"content": content} if content else {})))
    if made.deployments:
        (planned,) = made.deployments
        taken = {
            (rung.candidate.engine, rung.candidate.speculation.method)
            for group in planned.groups
            for rung in group.ladder
        }
        rejected = planned.rejected
    else:
        taken, rejected = set(), made.refused[0].rejected
    told = {(one.engine, method) for one in rejected for method in one.methods}
    assert taken | told == set(itertools.product(engines_for(known_checkpoint(model)), METHODS))
    assert all(one.reason for one in rejected)
