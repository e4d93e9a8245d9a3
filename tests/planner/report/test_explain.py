import re

import pytest
import yaml
from planning_values import plan_on

from sparkfleet.hostfacts.node import Gpu
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.diff import Change, compare
from sparkfleet.planner.report.explain.change import explain_change
from sparkfleet.planner.report.explain.fleet import explain_fleet, explain_nodes
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal, explain_why
from sparkfleet.planner.search.enumerate import ProposalEnumerator

FP8 = "Qwen/Qwen3.6-27B-FP8"
PINNED = {"engine": "sglang", "image": "scitrera/dgx-spark-sglang:0.5.12"}


def test_the_headline_says_what_was_asked_of_what(sparks, plan, ask):
    fleet, spec = sparks(2), ask(FP8, context=8192)
    found = plan(fleet, spec).deployments[0]
    line = explain_fleet(spec, found, fleet.nodes, "home", links=fleet.links, assumed=fleet.assumed)
    assert "objective interactive · context 8192 · concurrency 4" in line
    assert "home: 2 Sparks (assumed, not read), 1 link (RoCE both rails, 22.1 GB/s, 24 µs)\n" in line


@pytest.mark.parametrize(
    ("totals", "words"),
    [((64, 64), "2 Sparks of 64 GB"), ((130.6, 64, 64), "3 Sparks, 1 of 128 GB and 2 of 64 GB")],
)
def test_sparks_that_have_not_128_gb_are_named_with_their_memory(spark, ask, totals, words):
    nodes = tuple(spark(f"n{at}", int(total * 1e9)) for at, total in enumerate(totals))
    names = tuple(node.name for node in nodes)
    assert f"home: {words} (assumed, not read)\n" in explain_fleet(
        ask(FP8), None, nodes, "home", assumed=names
    )


def test_the_memory_of_unequal_nodes_is_shown_by_node(spark, link, plan, ask):
    nodes = (spark("spark1"), spark("spark2", 64_000_000_000))
    fleet = Fleet(nodes=nodes, links=(link("spark1", "spark2"),))
    found = plan(fleet, ask(FP8, parallel={"tp": 2})).deployments[0]
    text = "\n".join(explain_plan(found, nodes=nodes))
    assert re.search(r"memory +\d+ GiB on each node, of 122 \(spark1\), 60 \(spark2\): fits", text)
    first = "\n".join(explain_why(found, (), "TP=2"))
    assert re.search(r"memory fraction 0\.\d+, 0\.\d+", first)


def test_nodes_with_another_gpu_are_left_out_with_their_reason(spark, ask):
    other = spark("n2").model_copy(update={"gpu": Gpu(name="NVIDIA RTX Spark N1X", driver="616.00")})
    line = " ".join(explain_fleet(ask(FP8), None, (spark("n1"), other), "home").split())
    assert (
        "2 nodes; without n2 (NVIDIA RTX Spark N1X): no GB10 of a DGX Spark, so that memory, speed and images"
        in line
    )


def test_the_headline_has_what_all_replicas_share(sparks, plan, ask):
    fleet, spec = sparks(2), ask(FP8, replicas=2, concurrency=32)
    found = plan(fleet, spec).deployments[0]
    line = explain_fleet(spec, found, fleet.nodes, "home", links=fleet.links, assumed=fleet.assumed)
    assert "concurrency 32, 16 in each replica\n" in line
    assert "tok/s shared by 16" not in "\n".join(explain_change(compare(spec, found, None), found))
    assert " shared by 16 " in " ".join(explain_plan(found))


def test_replicas_on_one_node_do_not_add_up(sparks, plan, ask):
    """Two on one Spark, and two over the same eight, had twice the rate of one: they share its memory bandwidth."""
    alone, apart = (
        " ".join(" ".join(explain_plan(plan(sparks(nodes), spec).deployments[0])).split())
        for nodes, spec in ((1, ask("openai/gpt-oss-20b", replicas=2)), (2, ask(FP8, replicas=2)))
    )
    assert "on 2 replicas" not in alone
    assert "replicas share spark1: each is slower than predicted" in alone
    assert "on 2 replicas" in apart
    assert "replicas share" not in apart


def test_asked_nodes_with_unmeasured_links(sparks, plan, ask):
    fleet, spec = sparks(2, assumed=False), ask(FP8)
    line = explain_fleet(spec, None, fleet.nodes, "home", links=fleet.links)
    assert line.endswith("; links not measured\n")


@pytest.mark.parametrize("order", [1, -1])
def test_a_link_that_is_slower_than_the_others_is_named(spark, link, ask, order):
    nodes = tuple(spark(name) for name in ("a", "b", "c"))
    links = (link("a", "b"), link("b", "c", rails=1, gb_per_s=13.6, latency_us=30.0))[::order]
    line = " ".join(explain_fleet(ask(FP8), None, nodes, "home", links=links).split())
    assert "2 links (RoCE both rails, 22.1 GB/s, 24 µs; b–c: RoCE 1 rail, 13.6 GB/s, 30 µs)" in line


def test_links_that_were_measured_alike_have_the_figures_of_the_slowest(spark, link, ask):
    nodes = tuple(spark(f"n{at}") for at in range(6))
    fast = [link(f"n{at}", switch="sw", gb_per_s=22.0 + at / 10) for at in range(5)]
    line = explain_fleet(ask(FP8), None, nodes, "home", links=fast)
    assert "5 links (RoCE both rails, 22.0 GB/s, 24 µs)" in " ".join(line.split())
    slow = [link(f"n{at}", switch="sw", kind="tcp", rails=1, gb_per_s=1.1) for at in range(6)]
    line = explain_fleet(ask(FP8), None, nodes, "home", links=fast[:1] * 7 + slow[:4])
    assert "; n0–sw, n1–sw, n2–sw and 1 more: TCP 1 rail, 1.1 GB/s, 24 µs)" in " ".join(line.split())


def test_choice_ladder_and_rejected(sparks, plan, ask):
    lines = explain_plan(plan(sparks(2), ask(FP8, **PINNED)).deployments[0])
    text = "\n".join(lines)
    assert lines[0].startswith("  choice      spark1 · TP=1 · SGLang 0.5.12 · FP8 · NEXTN k=5 top-4")
    assert re.search(
        r"speed       [\d.]+ tok/s for one user \([\d.]+–[\d.]+; published: 20\.6 on a book\),"
        r"\s+\d+\s+shared by 4 \(\d+–\d+\)\n"
        r" +first word after [\d.]+ s \(2K prompt\); prefill [\d,]+ tok/s; predicted from \d+\s+measurements\n",
        text,
    )
    assert re.search(r"memory +\d+ GiB: (fits|tight) \(\d+–\d+\)", text)
    assert re.search(r"  if it fails rung 2: SGLang 0\.5\.12 .* tok/s", text)
    assert "  not taken   " in text
    assert "rejected" not in text
    assert "image-retag-drift" in text


def test_rungs_have_the_rate_of_the_objective(sparks, plan, ask):
    """A ladder for many clients had rates of one, by which drafts were faster than the choice."""
    spec = ask("nvidia/Llama-3.3-70B-Instruct-FP4", objective="throughput")
    second = plan(sparks(1), spec).deployments[0].groups[0].ladder[1]
    text = "\n".join(explain_plan(plan(sparks(1), spec).deployments[0]))
    rate, requests = second.prediction.decode_tps_aggregate.mid, second.candidate.concurrency
    assert f"if it fails rung 2: {second.candidate.how} · {rate:.3g} tok/s shared by {requests}" in text


def test_all_shows_what_is_hidden(sparks, plan, ask):
    found = plan(sparks(2), ask(FP8)).deployments[0]
    short, full = explain_plan(found), explain_plan(found, everything=True)
    (count,) = re.findall(r"not taken +(\d+) candidates: ", "\n".join(short))
    assert int(count) == len(found.rejected)
    assert len(full) > len(short)
    assert not any("--all" in line for line in full)
    assert len([line for line in full if "rejected" in line or line.startswith(" " * 14)]) >= len(
        found.rejected
    )


def test_unlike_groups_are_told_each_and_alike_ones_once(sparks, plan, ask):
    alike = explain_plan(plan(sparks(2), ask(FP8, replicas=2, **PINNED)).deployments[0])
    assert sum(line.startswith("  choice") for line in alike) == 1
    assert "2 replicas (spark1, spark2)" in alike[0]
    unlike = ask(
        None, variants=[{"model": FP8, **PINNED}, {"model": "nvidia/Qwen3.6-27B-NVFP4", "engine": "vllm"}]
    )
    assert (
        sum(line.startswith("  choice") for line in explain_plan(plan(sparks(2), unlike).deployments[0])) == 2
    )


def test_a_variant_that_nothing_can_serve_is_told_with_what_is_nearest(sparks, plan, ask):
    spec = ask(None, variants=[{"model": FP8, **PINNED}, {"model": "Qwen/Qwen3-235B-A22B-GPTQ-Int4"}])
    lines = explain_plan(plan(sparks(1), spec).deployments[0])
    at = next(n for n, line in enumerate(lines) if line.startswith("  not served"))
    assert "Qwen/Qwen3-235B-A22B-GPTQ-Int4: does not fit: " in lines[at]
    near = next(line for line in lines[at:] if "nearest" in line)
    assert near.strip() == "nearest: fits with two more linked nodes"


def test_why_tells_everything_about_a_candidate(sparks, plan, ask):
    found = plan(sparks(2), ask(FP8, **PINNED)).deployments[0]
    text = "\n".join(explain_why(found, found.rejected, "nextn top-4"))
    assert "GiB  weights" in text
    assert "tokens per step expected" in text
    assert "memory fraction" in text
    slower = "\n".join(explain_why(found, found.rejected, "TP=2"))
    assert "tok/s for one user against" in slower
    assert "no candidate is described" in explain_why(found, found.rejected, "TP=64")[0]


def test_all_lists_every_candidate_that_was_not_better(sparks, plan, ask, monkeypatch):
    """Each proposal that had room is a rung, or a line of its own with its numbers or the rule that rejects it."""
    proposed = []
    sized = ProposalEnumerator.sized

    def recorded(self):
        for one in sized(self):
            proposed.append(one[0])
            yield one

    monkeypatch.setattr(ProposalEnumerator, "sized", recorded)
    found = plan(sparks(2), ask(FP8)).deployments[0]
    text = " ".join(" ".join(explain_plan(found, everything=True)).split())
    ladder = [rung.candidate for rung in found.groups[0].ladder]
    taken = {(str(one.shape.split), one.engine, str(one.speculation)) for one in ladder}
    left = {(str(one.split), one.engine, str(one.speculation)) for one in proposed} - taken
    named = {
        (split, one.engine, speculation)
        for split, engine, speculation in left
        for one in found.rejected
        if one.engine == engine and one.what.startswith(f"{split} · ") and one.what.endswith(speculation)
    }
    assert len(left) > 8
    assert named == left
    slower = [one for one in found.rejected if one.why == "slower"]
    assert len({one.what for one in slower}) == len(slower)
    assert all(f"{one.what} {one.reason}" in text for one in slower)


def test_why_tells_how_much_is_prefilled_at_a_time(sparks, plan, ask):
    found = plan(sparks(1), ask(FP8, engine="vllm", speculation="none")).deployments[0]
    text = "\n".join(explain_why(found, (), "no speculation"))
    assert "prefill 8192 tokens at a time; vLLM's default on a Spark is 2048" in text


def test_a_refusal_with_what_is_nearest(sparks, plan, ask):
    (refusal,) = plan(sparks(1), ask("Qwen/Qwen3.5-122B-A10B")).refused
    text = "\n".join(explain_refusal(refusal))
    assert "infeasible" in text
    assert "does not fit" in text
    assert "  remedy  " not in text
    assert re.search(
        r"nearest     fits on \w+ linked nodes · fits as NVFP4 \(about \d+ GB of weights\)", text
    )


def test_the_remedy_of_a_rule_is_named_if_nothing_else_would_fit(sparks, plan, ask):
    model = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
    (refusal,) = plan(sparks(1), ask(model, license="open")).refused
    assert "  remedy      `sparkfleet explain license-nvidia-open-model`" in explain_refusal(refusal)
    fits = refusal.model_copy(update={"nearest": ("fits with `replicas: 1`",)})
    assert not [line for line in explain_refusal(fits) if "  remedy  " in line]


def test_changes_and_nodes(sparks, plan, ask):
    spec = ask(FP8)
    found = plan(sparks(2), spec, ask("Qwen/Qwen3-30B-A3B-FP8", "other"))
    change = compare(spec, found.of("m"), None)
    lines = explain_change(change, found.of("m"))
    assert re.fullmatch(
        r"  changes     \+ start  m on spark\d\n"
        r" +weights: about 31 GB on spark\d, copied if not there \(estimated from the config\)",
        "\n".join(lines[1:3]),
    )
    assert lines[-1].endswith("1 to start, 0 to change")
    nodes = "\n".join(explain_nodes(found.nodes))
    loads = re.search(r"nodes       spark1: \w+ (\d+) GiB; (\d+) of 113 GiB for engines left", nodes)
    assert loads
    assert sum(map(int, loads.groups())) == pytest.approx(113, abs=1)


def test_a_plan_for_throughput_has_the_total_of_all_replicas(sparks, plan, ask):
    """Four Sparks had the rate of one, and the verdict that of one request."""
    spec = ask(FP8, objective="throughput")
    found = plan(sparks(4), spec).of("m")
    total = sum(group.choice.prediction.decode_tps_aggregate.mid for group in found.groups)
    assert len(found.groups) == 4
    assert found.tps == pytest.approx(total)
    assert " by 64 on 4 replicas first word " in " ".join(" ".join(explain_plan(found)).split())
    verdict = explain_change(compare(spec, found, None), found)[-1]
    assert f"fits, {total:.3g} tok/s shared by 64: 1 to start" in verdict


def test_a_load_that_is_set_is_that_of_all_replicas_together(sparks, plan, ask):
    """Eight Sparks with 16 requests in all had the rate of 128, twice as much as they have."""
    found = plan(
        sparks(8, switch=True), ask("openai/gpt-oss-120b", objective="throughput", concurrency=16)
    ).of("m")
    assert len(found.groups) > 1
    assert f" by 16 on {len(found.groups)} replicas\n" in "\n".join(explain_plan(found))


def test_the_embedded_engine_says_that_speed_is_not_known(cpu_node, ask):
    text = "\n".join(explain_plan(plan_on(ask("builtin:tiny"), [cpu_node()])))
    assert "  speed       not predicted; measured after the start" in text
    assert "1.3 GiB: fits (1.1–1.8)" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keeps": ("g1/0",)}, "restarts no engine: g1/0 goes on"),
        ({"keeps": ("g1/0", "g1/1")}, "restarts no engine: g1/0 and g1/1 go on"),
        ({"keeps": ("g1/0",), "ends": ("g2/1",)}, "ends g2/1; g1/0 goes on"),
        (
            {"keeps": ("g1/0",), "starts": 1},
            "starts one more engine (no start of it was timed here yet); g1/0 goes on",
        ),
        (
            {"starts": 1, "ends": ("g1/0",), "handover": "beside", "expected_s": 250.0},
            "restarts the engine (the last start took 4 min); g1/0 serves until then",
        ),
        (
            {"starts": 2, "ends": ("g1/0", "g1/1"), "handover": "first"},
            "restarts 2 engines (no start of it was timed here yet); g1/0 and g1/1 end first,"
            " because memory does not hold both; they serve again if no new one starts",
        ),
        (
            {"starts": 1, "ends": ("g1/0",), "silent": ("g1/0",), "handover": "beside"},
            "restarts the engine (no start of it was timed here yet); g1/0 does not answer",
        ),
        (
            {"starts": 2, "ends": ("g1/0", "g1/1"), "silent": ("g1/1",), "handover": "beside"},
            "restarts 2 engines (no start of it was timed here yet); g1/0 serves until then; g1/1 does not answer",
        ),
        (
            {"starts": 1, "ends": ("g1/0",), "handover": "first", "port": 8000},
            "g1/0 ends first, because both listen on port 8000; it serves again if no new one starts",
        ),
        (
            {"starts": 2, "ends": ("g1/0", "g1/1"), "handover": "in turn"},
            "g1/0 and g1/1 end one after the other, and the others serve meanwhile, because memory does not hold both",
        ),
        (
            {"starts": 2, "ends": ("g1/0",), "handover": "in turn", "port": 8000},
            "g1/0 serves until the first of them is ready, because both listen on port 8000",
        ),
        (
            {"starts": 1, "ends": ("g1/1",), "keeps": ("g1/0",)},
            "restarts the engine (no start of it was timed here yet); g1/1 serves until then if memory holds both;"
            " g1/0 goes on",
        ),
    ],
)
def test_the_cost_of_a_change(change, words):
    assert words in " ".join(" ".join(explain_change(Change(verb="change", name="m", **change))).split())


def test_a_new_deployment_names_those_of_its_model_that_go_on():
    words = " ".join(
        " ".join(explain_change(Change(verb="start", name="m", same_model=("old", "b")))).split()
    )
    assert (
        "old and b serve the same model, and go on; if m is a new name for it:"
        " `sparkfleet delete old` `sparkfleet delete b`"
    ) in words


@pytest.mark.parametrize(("starts", "words"), [(1, "(loads 29 GiB, the"), (2, "(each loads 29 GiB, the")])
def test_a_restart_has_the_bytes_that_it_loads(sparks, plan, ask, starts, words):
    change = Change(verb="change", name="m", starts=starts, ends=("g1/0",), expected_s=250.0)
    found = plan(sparks(1), ask(FP8)).of("m")
    assert words in " ".join("\n".join(explain_change(change, found)).split())
    assert "loads" not in "\n".join(explain_change(Change(verb="change", name="m", keeps=("g1/0",)), found))


@pytest.mark.parametrize(
    "model",
    [
        "nvidia/Gemma-4-31B-IT-NVFP4",
        "nvidia/Gemma-4-26B-A4B-NVFP4",
        "Qwen/Qwen3.6-27B-FP8",
        "nvidia/Qwen3.5-122B-A10B-NVFP4",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "RadixArk/Qwen3.8-Flash-Next-NVFP4",
        "openai/gpt-oss-120b",
    ],
)
def test_the_line_of_every_rung_plans(sparks, plan, ask, model):
    text = " ".join(" ".join(explain_plan(plan(sparks(1), ask(model)).deployments[0])).split())
    for rung in re.split(r"rung \d+: ", text)[1:]:
        fields = yaml.safe_load("\n".join(re.findall(r"`((?:engine|speculation): [^`]+)`", rung))) or {}
        found = plan(sparks(1), ask(model, **fields))
        assert found.refused == (), fields
        chosen = found.deployments[0].groups[0].choice.candidate
        assert chosen.speculation.method == fields.get("speculation", chosen.speculation.method)
