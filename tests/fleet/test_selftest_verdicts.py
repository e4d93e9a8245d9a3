"""The verdicts of a self-test, of values."""

import pytest

from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.doctor.collect import RawAnswer
from sparkfleet.fleet.lifecycle.reboot import Survival
from sparkfleet.fleet.nodes.all_reduce import AllReduceMeasurement
from sparkfleet.fleet.selftest_verdicts import (
    all_reduce_seen,
    engine_seen,
    engine_spec,
    facts_seen,
    link_seen,
    planned_link,
    rails_seen,
    survival_seen,
)
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.hostfacts.network.link import LinkFacts
from sparkfleet.units import GIB


def raw(field, not_understood=""):
    return RawAnswer(field=field, argv=("cat",), exit_code=0, not_understood=not_understood)


def link(gb_per_s, latency_us=20.0):
    return LinkFacts(nodes=("a", "b"), latency_us=latency_us, gb_per_s=gb_per_s)


def state():
    group = GroupReport(
        deployment="selftest", generation=1, replica=0, phase=GroupPhase.READY, node="a", since=0.0,
        measured={"ttft_ms": 24.0, "decode_tps": 61.0},
    )  # fmt: skip
    return DeploymentStatus(
        name="selftest", generation=1, state="ready", detail="", who="", since=0.0, plan=None, groups=(group,)
    )


def test_a_fact_that_one_of_several_commands_gives_is_known():
    assert facts_seen([raw("time", "no chrony"), raw("time"), raw("memory")])[:2] == (
        True,
        "2 facts by 3 commands, each output understood",
    )


def test_a_fact_that_another_one_replaces_is_not_missed():
    assert facts_seen([raw("pci_links", "empty"), raw("pci_by_address")]).fine
    assert not facts_seen([raw("pci_links", "empty"), raw("pci_by_address", "empty")]).fine


def test_a_fact_that_no_command_gives_is_a_fault_with_the_command_for_a_report():
    fine, words, do = facts_seen([raw("time", "no chrony"), raw("memory")])
    assert not fine
    assert words == "1 of 2 facts could not be read: time; first: no chrony"
    assert "sparkfleet bundle" in do


@pytest.mark.parametrize(
    ("measured", "latency_us", "fine"),
    [(20.0, 20.0, True), (15.0, 39.0, True), (13.0, 20.0, False), (20.0, 41.0, False)],
)
def test_a_link_is_held_against_the_planners_figures(measured, latency_us, fine):
    seen = link_seen(link(measured, latency_us), link(20.0))
    figures = f"{measured:.1f} GB/s and {latency_us:.0f} µs measured"
    assert (seen.fine, figures in seen.words, bool(seen.do)) == (fine, True, not fine)


def test_a_pair_is_planned_with_its_slowest_link():
    """Nodes on a switch have a link each."""
    fast, slow, other = link(20.0), link(15.0, 28.0), link(1.0).model_copy(update={"nodes": ("b", "c")})
    assert planned_link([fast, slow, other], ("a", "b")) == slow


@pytest.mark.parametrize(
    ("rails", "fault"),
    [
        ({"r1": 500, "r2": 480}, ""),
        ({"r1": 500, "r2": 260}, ""),
        ({"r1": 500, "r2": 240}, "b: r2 carries less than 50% of what r1 carries"),
        ({"r1": 0, "r2": 500}, "b: r1 carried nothing"),
        ({"r1": 0, "r2": 0}, "b sent its messages over another network than the rails"),
    ],
)
def test_a_dead_or_lopsided_rail_of_any_node_is_a_fault(rails, fault):
    seen = rails_seen({"a": {"r1": 500, "r2": 500}, "b": rails})
    assert seen.fine == (not fault)
    assert fault in seen.words
    assert "b r1 0.0 MB" in seen.words


def test_by_tcp_the_first_rail_carries_all_of_it():
    sent = {"a": {"r1": 900, "r2": 0}}
    assert rails_seen(sent, split=False, at_least=900).fine
    assert not rails_seen(sent, split=False, at_least=901).fine


def all_reduce(**more):
    of_nccl = {"backend": "nccl", "nccl": "2.28.3", "latency_us": 25.0, "gb_per_s": 21.0, "moved": 1000}
    sent = {"a": {"r1": 500, "r2": 500}}
    return AllReduceMeasurement.model_validate(of_nccl | {"by_rdma": True, "sent": sent} | more)


def test_an_all_reduce_of_nccl_is_held_against_the_figures_of_the_plan_and_its_rails_are_even():
    seen = all_reduce_seen(all_reduce(), link(22.1, 24.0))
    assert seen.fine
    assert seen.words == (
        "NCCL 2.28.3: 21.0 GB/s and 25 µs measured; assumed of such links: 22.1 GB/s, 24 µs;"
        " sent: a r1 0.0 MB, r2 0.0 MB"
    )
    for slow in ({"gb_per_s": 13.0}, {"latency_us": 60.0}, {"sent": {"a": {"r1": 0, "r2": 1000}}}):
        slower = all_reduce_seen(all_reduce(**slow), link(22.1, 24.0))
        assert (slower.fine, bool(slower.do)) == (False, True)


def test_gloo_of_cpus_is_not_held_against_figures_of_nccl_but_has_to_use_the_rail():
    of_cpus = {"backend": "gloo", "nccl": "", "gb_per_s": 0.2, "latency_us": 3600.0, "by_rdma": False}
    seen = all_reduce_seen(all_reduce(**of_cpus, sent={"a": {"r1": 1001}}), link(22.1, 24.0))
    assert seen.fine
    assert seen.words.startswith("gloo on CPUs: 0.20 GB/s, 3600 µs")
    assert not all_reduce_seen(all_reduce(**of_cpus, sent={"a": {"r1": 999}}), link(22.1, 24.0)).fine


@pytest.mark.parametrize(
    ("survival", "fine", "words"),
    [
        (Survival(node_s=70.2, served_s=251.0), True, "all that it served was ready after 251 s"),
        (Survival(node_s=70.2, missing=("tiny",)), False, "not ready again within 30 min: tiny"),
        (Survival(missing=("tiny",)), False, "not part of the fleet again within 30 min"),
    ],
)
def test_a_reboot_is_survived_if_all_that_the_node_served_is_back(survival, fine, words):
    seen = survival_seen(survival)
    assert (seen.fine, bool(seen.do)) == (fine, not fine)
    assert words in seen.words


@pytest.mark.parametrize(
    ("tokens", "returned", "fine"), [(40, GIB, True), (1, GIB, False), (40, -2 * GIB, False)]
)
def test_an_engine_answers_and_returns_its_memory(tokens, returned, fine):
    seen = engine_seen(state(), tokens, returned)
    assert seen.fine is fine
    if fine:
        assert (
            seen.words == "answered 40 tokens; TTFT 24 ms, 61.0 tok/s for one user; not checked by the canary"
        )


def of(state, plan, rung=0):
    """The state of a selftest that runs at a rung of this plan; rungs above it ran out of memory."""
    group = state.groups[0].model_copy(update={"rung": rung})
    return state.model_copy(update={"plan": plan, "groups": (group,), "passed": (("out of memory",) * rung,)})


@pytest.mark.parametrize("count", [1, 2])
def test_on_sparks_the_engine_is_one_that_is_planned_for_their_gpus(sparks, plan, count):
    """It was a built-in model: no plan serves one on a GPU, so that every Spark had a fault and no image was tried."""
    fleet = sparks(count)
    spec = engine_spec(fleet.nodes)
    (group,) = plan(fleet, spec).deployments[0].groups
    candidate = group.choice.candidate
    assert (candidate.device, candidate.runtime) == ("cuda", "container")
    assert (candidate.shape.nodes, candidate.shape.tp) == (tuple(node.name for node in fleet.nodes), count)
    assert group.choice.prediction.decode_tps_per_request is not None


def test_on_cpus_it_is_a_built_in_model_and_a_given_one_is_used_everywhere(sparks, cpu_node):
    assert engine_spec([cpu_node()]).model == "builtin:tiny"
    assert engine_spec([cpu_node(), *sparks(1).nodes]).model == "builtin:tiny"
    assert engine_spec(sparks(1).nodes, "Qwen/Qwen3-1.7B").model == "Qwen/Qwen3-1.7B"


def test_an_engine_of_another_image_than_the_planned_one_is_a_fault_with_the_reason(sparks, plan):
    fleet = sparks(1)
    planned = plan(fleet, engine_spec(fleet.nodes)).deployments[0]
    first, second = (str(rung.candidate) for rung in planned.groups[0].ladder[:2])
    as_planned = engine_seen(of(state(), planned), 40, GIB)
    assert as_planned.fine
    assert first in as_planned.words
    fallen = engine_seen(of(state(), planned, rung=1), 40, GIB)
    assert not fallen.fine
    assert f"rung 1 not used, {first}: out of memory" in fallen.words
    assert second in fallen.words
    assert "`sparkfleet bundle`" in fallen.do
