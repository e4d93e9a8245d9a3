"""Deployments that no CPU can serve as they are set, with the reason."""

import pytest
from planning_values import plan_on

from sparkfleet.errors import Infeasible, SpecError
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.cpu_model import CpuModel
from sparkfleet.runtime.files.builtin_models import builtin_model


def refused(ask, node, model=None, **fields):
    """Reasons of a plan in which the built-in model has these capabilities."""
    known = CpuModel(positions=2048, vision=False, heads=()) if model is None else model
    plan = plan_fleet(
        [ask("builtin:tiny", **fields)], Fleet(nodes=(node,)), builtin_models={"builtin:tiny": known}
    )
    return [one.reason for refusal in plan.refused for one in refusal.rejected]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"context": 4096}, "supports at most 2048 tokens, but the deployment sets a context of 4096"),
        ({"needs": ["vision"]}, "it has no vision tower, but the deployment needs vision"),
        ({"speculation": "mtp"}, "its checkpoint has no head for MTP"),
        ({"speculation": "eagle3"}, "EAGLE3 needs a draft"),
        ({"engine_args": ["--no-such-flag-at-all"]}, "vLLM 0.32.0+cpu has no flag --no-such-flag-at-all"),
        ({"engine_args": ["--dtype=float99"]}, "vLLM 0.32.0+cpu refuses --dtype=float99; it takes float"),
        ({"replicas": 99}, "of 99 replicas; 1.8 GiB are reserved for each"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(cpu_node, ask, fields, words):
    (reason,) = refused(ask, cpu_node(), **fields)
    assert words in reason


@pytest.mark.parametrize(
    "fields",
    [
        {"context": 2048},
        {"speculation": "ngram"},
        {"speculation": {"method": "draft", "draft": "builtin:tiny-draft"}},
        {"engine_args": ["--max-num-batched-tokens=512"]},
        {"replicas": 2},
    ],
)
def test_what_can_be_served_is_not(cpu_node, ask, fields):
    assert refused(ask, cpu_node(), **fields) == []


def test_a_directory_without_weights_is_refused(cpu_node, ask):
    assert refused(ask, cpu_node(), CpuModel(weights=False)) == ["the directory has a config and no weights"]


def test_a_model_of_which_nothing_is_known_is_not_refused(cpu_node, ask):
    assert refused(ask, cpu_node(), CpuModel(), context=100_000, needs=["vision"], speculation="mtp") == []


def test_built_in_models_are_known_by_their_recipes():
    assert builtin_model("builtin:tiny") == CpuModel(positions=2048, vision=False, heads=())
    assert builtin_model("tiny-mtp").heads == ("mtp",)
    assert builtin_model("tiny-vision").vision is True
    with pytest.raises(SpecError, match="nope") as error:
        builtin_model("builtin:nope")
    assert "tiny-moe" in error.value.do


def test_no_cpu_attention_joins_parts_of_a_kv_cache(cpu_node, ask):
    with pytest.raises(Infeasible) as error:
        plan_on(ask("builtin:tiny", parallel={"dcp": 2}), [cpu_node()])
    assert "`dcp` is for engines on a GPU" in error.value.means
    assert plan_on(ask("builtin:tiny", parallel={"dcp": 1}), [cpu_node()]).groups
