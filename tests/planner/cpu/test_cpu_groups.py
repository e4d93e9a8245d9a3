"""Engines on CPUs: processes of what is installed, and containers, whose engine is known by the name of their image."""

import pytest
from planning_values import plan_on

from sparkfleet.errors import Infeasible
from sparkfleet.hostfacts.network.link import LinkFacts
from sparkfleet.hostfacts.node import Gpu, InstalledEngine
from sparkfleet.planner.cpu.cpu_rung import MEMORY, SGLANG_MEMORY
from sparkfleet.planner.cpu.cpu_stacks import SUPPOSED
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet

IMAGE = f"localhost/engine@sha256:{'0' * 64}"
SGLANG = f"localhost/sglang-cpu@sha256:{'0' * 64}"


def first(ask, nodes, **fields):
    return plan_on(ask("builtin:tiny", **fields), nodes).groups[0].choice


def _places(plan):
    return [group.choice.candidate.shape.nodes for group in plan.groups]


def test_an_image_runs_with_its_own_python(cpu_node, ask):
    rung = first(ask, [cpu_node()], image=IMAGE)
    candidate = rung.candidate
    assert (candidate.runtime, candidate.image, candidate.python) == ("container", IMAGE, "python3")
    assert (candidate.engine, candidate.device, candidate.dtype) == ("vllm", "cpu", "float32")
    assert "unknown image" in rung.notes[0]
    assert rung.prediction.memory_bytes_per_rank == MEMORY


def test_its_version_is_supposed_to_be_that_of_the_nodes(cpu_node, ask):
    home = InstalledEngine(python="/x/bin/python", version="0.31.0+cpu")
    nodes = [cpu_node("a", engines={}), cpu_node("b", engines={"vllm": home})]
    assert first(ask, nodes, image=IMAGE).candidate.engine_version == "0.31.0+cpu"


def test_without_any_it_is_supposed_to_be_what_was_tried(cpu_node, ask):
    """Nothing has to be installed on a node for a container."""
    rung = first(ask, [cpu_node(engines={})], runtime="container", image=IMAGE)
    assert rung.candidate.engine_version == SUPPOSED["vllm"]
    assert SUPPOSED["vllm"] in rung.notes[0]


@pytest.mark.parametrize("fields", [{"image": SGLANG}, {"image": IMAGE, "engine": "sglang"}])
def test_the_name_tells_the_engine_unless_the_deployment_does(cpu_node, ask, fields):
    rung = first(ask, [cpu_node(engines={})], **fields)
    assert (rung.candidate.engine, rung.candidate.engine_version) == ("sglang", SUPPOSED["sglang"])
    assert rung.prediction.memory_bytes_per_rank == SGLANG_MEMORY


def test_processes_need_no_image_and_say_nothing_of_one(cpu_node, ask):
    rung = first(ask, [cpu_node()])
    assert (rung.candidate.runtime, rung.candidate.image, rung.notes) == ("process", None, ())


def test_an_image_that_is_known_is_built_for_gpus(cpu_node, ask):
    with pytest.raises(Infeasible) as error:
        first(ask, [cpu_node()], image="nvcr.io/nvidia/vllm:25.11-py3")
    assert "nvcr.io/nvidia/vllm:25.11-py3 needs a GPU" in error.value.means


@pytest.mark.parametrize("method", ["dflash2", "dspark"])
def test_what_vllms_cpu_build_refuses_is_refused_before_it_starts(cpu_node, ask, method):
    with pytest.raises(Infeasible) as error:
        first(ask, [cpu_node()], speculation={"method": method, "tokens": 3, "draft": "/models/draft"})
    assert f"vLLM's CPU build refuses {method.upper()}" in error.value.means


def test_sglang_without_a_gpu_does_not_speculate_and_the_plan_says_so(cpu_node, ask):
    with pytest.raises(Infeasible) as error:
        first(ask, [cpu_node()], image=SGLANG, speculation={"method": "ngram", "tokens": 3})
    assert "built for CUDA only" in error.value.means


class TestProcesses:
    """Processes of vLLM's CPU build, which run everywhere: they must not change by themselves."""

    def test_the_candidate_is_as_ever(self, cpu_node, ask):
        plan = plan_on(ask("builtin:tiny", context=512, concurrency=16), [cpu_node()])
        (group,) = plan.groups
        candidate = group.choice.candidate
        assert candidate.device == "cpu"
        assert candidate.dtype == "float32"
        assert candidate.kv_cache_bytes == 64 << 20
        assert (candidate.shape.tp, candidate.shape.nodes) == (1, ("this",))
        assert (candidate.runtime, candidate.python) == ("process", "/venv/bin/python")
        assert (candidate.context, candidate.concurrency) == (512, 16)
        assert candidate.engine_args == ()
        assert group.choice.prediction.memory_bytes_per_rank.high == 1.8 * (1 << 30)

    def test_every_node_is_a_rung(self, cpu_node, ask):
        plan = plan_on(ask("builtin:tiny"), [cpu_node("a"), cpu_node("b")])
        assert [rung.candidate.shape.nodes for rung in plan.groups[0].ladder] == [("a",), ("b",)]

    @pytest.mark.parametrize(
        ("node", "fields", "reason"),
        [
            ({"available": 1 << 30}, {}, "1.0 GiB are available"),
            ({"engines": {}}, {}, "not installed"),
            ({}, {"parallel": {"tp": 2}}, "2 linked nodes"),
            ({}, {"engine": "sglang"}, "SGLang is not installed"),
            ({}, {"engine": "trtllm"}, "no CPU build"),
            ({}, {"runtime": "container"}, "no image of a CPU build is known"),
            ({}, {"nodes": ["other"]}, "other: not in this fleet"),
            ({}, {"model": "org/model"}, "download no weights"),
        ],
    )
    def test_refused_with_the_reason(self, cpu_node, ask, node, fields, reason):
        with pytest.raises(Infeasible) as error:
            plan_on(ask(**{"model": "builtin:tiny", **fields}), [cpu_node(**node)])
        assert reason in error.value.means

    def test_nodes_that_are_not_named_are_told_why_not(self, cpu_node, ask):
        plan = plan_on(ask("builtin:tiny", nodes=["a"]), [cpu_node("a"), cpu_node("b")])
        assert [one.reason for one in plan.rejected] == ["not among the nodes that the deployment names"]

    def test_two_linked_nodes_hold_two_ranks(self, cpu_node, ask):
        spec = ask("builtin:tiny", parallel={"tp": 2, "ep": 2})
        link = LinkFacts(nodes=("a", "b"), rails=2, latency_us=30, gb_per_s=20)
        plan = plan_on(spec, [cpu_node("a"), cpu_node("b")], links=[link])
        shape = plan.groups[0].choice.candidate.shape
        assert (shape.nodes, shape.tp, shape.ep) == (("a", "b"), 2, 2)

    def test_all_ranks_have_the_same_engine_at_the_same_place(self, cpu_node, ask):
        homes = {"sglang": InstalledEngine(python="/sg/bin/python", version="0.5.23+cpu")}
        nodes = [cpu_node("a"), cpu_node("b", engines=homes)]
        link = LinkFacts(nodes=("a", "b"), rails=2, latency_us=30, gb_per_s=20)
        with pytest.raises(Infeasible) as error:
            plan_on(ask("builtin:tiny", parallel={"tp": 2}), nodes, links=[link])
        assert "are needed" in error.value.means

    def test_two_engines_under_one_name(self, cpu_node, ask):
        node = cpu_node()
        home = InstalledEngine(python="/sg/bin/python", version="0.5.23+cpu")
        both = node.model_copy(update={"engines": {**node.engines, "sglang": home}})
        variants = [{"model": "builtin:tiny", "engine": engine} for engine in ("vllm", "sglang")]
        first, second = (group.choice for group in plan_on(ask(None, variants=variants), [both]).groups)
        assert [one.candidate.engine for one in (first, second)] == ["vllm", "sglang"]
        assert second.candidate.python == "/sg/bin/python"
        assert second.prediction.memory_bytes_per_rank.mid > first.prediction.memory_bytes_per_rank.mid

    def test_replicas_lie_apart(self, cpu_node, ask):
        plan = plan_on(ask("builtin:tiny", replicas=2), [cpu_node("a"), cpu_node("b")])
        assert [group.choice.candidate.shape.nodes for group in plan.groups] == [("a",), ("b",)]

    def test_groups_that_run_stay_on_their_nodes(self, cpu_node, ask):
        """An unchanged `apply` moved a pair once a drained node was back, and restarted it."""
        nodes = [cpu_node(name) for name in "abcd"]
        links = [
            LinkFacts(nodes=pair, rails=2, latency_us=30, gb_per_s=20) for pair in (("a", "b"), ("c", "d"))
        ]
        for spec in (ask("builtin:tiny", parallel={"tp": 2}), ask("builtin:tiny", replicas=2)):
            running = plan_on(spec, nodes[2:], links=links[1:])
            again = plan_fleet([spec], Fleet(nodes=tuple(nodes), links=tuple(links)), running={"m": running})
            assert _places(again.of("m")) == _places(running)
            assert {name for place in _places(running) for name in place} == {"c", "d"}

    def test_each_variant_stays_on_its_own_node(self, cpu_node, ask):
        variants = [{"model": "builtin:tiny"}, {"model": "builtin:tiny", "speculation": "ngram"}]
        fleet = Fleet(nodes=(cpu_node("a"), cpu_node("b")))
        spec = ask(None, variants=variants)
        running = plan_fleet([spec], fleet).of(spec.name)
        again = plan_fleet([spec], fleet, running={spec.name: running}).of(spec.name)
        assert _places(again) == _places(running) == [("a",), ("b",)]

    def test_speculation_is_what_the_deployment_says(self, cpu_node, ask):
        (group,) = plan_on(ask("builtin:tiny", speculation="ngram"), [cpu_node()]).groups
        assert (group.choice.candidate.speculation.method, group.choice.candidate.speculation.tokens) == (
            "ngram",
            3,
        )
        (group,) = plan_on(ask("builtin:tiny"), [cpu_node()]).groups
        assert group.choice.candidate.speculation.method == "none"

    def test_a_spark_whose_only_engine_is_a_cpu_build_counts_as_one_without_gpu(self, cpu_node, ask):
        node = cpu_node().model_copy(update={"gpu": Gpu(name="NVIDIA GB10", driver="580.142")})
        assert plan_on(ask("builtin:tiny"), [node]).groups[0].choice.candidate.device == "cpu"

    def test_memory_of_its_own_groups_is_given_back(self, cpu_node, ask):
        spec = ask("builtin:tiny")
        running = {spec.name: plan_on(spec, [cpu_node()])}
        full = Fleet(nodes=(cpu_node(available=1 << 30),))
        assert plan_fleet([spec], full).refused
        assert not plan_fleet([spec], full, running=running).refused

    def test_builtin_models_do_not_run_on_a_gpu(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask("builtin:tiny")).refused
        assert "CPUs only" in refusal.rejected[0].reason
        assert "address: local" in refusal.nearest[0]
