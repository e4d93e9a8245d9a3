import pytest
from model_configs import CONFIGS

from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.hostfacts.node import NodeFacts, Processors, UnifiedMemory
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.constraints import impossible_split, mistaken
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.parallel import Parallel


def node(name):
    memory = UnifiedMemory(total=1 << 37, available=1 << 37)
    return NodeFacts(
        name=name, memory=memory, processors=Processors(count=20, machine="aarch64"), gpu=None, engines={}
    )


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([], None),
        (["a"], None),
        (["a", "b"], None),
        (["b"], "b: drained; `sparkfleet undrain b` ends that"),
        (["a", "c"], "c: not in this fleet, which has a"),
        (["b", "c"], "c: not in this fleet, which has a"),
    ],
)
def test_a_deployment_whose_nodes_are_all_drained_is_refused_with_the_command_that_ends_it(nodes, reason):
    spec = Deployment(name="m", model="builtin:tiny", nodes=tuple(nodes))
    found = mistaken(spec, 0, spec.resolved()[0], Fleet(nodes=(node("a"),), drained=("b",)))
    assert (found.reason if found else None) == reason


@pytest.mark.parametrize(
    ("model", "parallel", "reason"),
    [
        (
            "Qwen/Qwen3-8B",
            {"ep": 2},
            "EP=2 splits experts, and the model has none; take `ep` out of `parallel`",
        ),
        ("Qwen/Qwen3-8B", {"tp": 6}, "TP times PP is 6; a group has 1, 2, 3, 4 or 8 nodes"),
        ("Qwen/Qwen3-8B", {"tp": 2, "pp": 4, "ep": 1}, ""),
        ("Qwen/Qwen3-30B-A3B", {"tp": 4, "ep": 2}, "EP=2 with TP=4: EP is 1 or as large as TP"),
        ("Qwen/Qwen3-30B-A3B", {"ep": 3}, "EP=3 does not divide the 128 experts of a layer"),
        ("Qwen/Qwen3-30B-A3B", {"ep": 2}, ""),
        ("Qwen/Qwen3-30B-A3B", {"tp": 8, "dcp": 2}, ""),
        ("Qwen/Qwen3-30B-A3B", {"dcp": 2}, ""),
        (
            "Qwen/Qwen3-30B-A3B",
            {"dcp": 4},
            "DCP=4 is more than the 2 copies that TP=8 makes of 4 KV heads",
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            {"tp": 4, "dcp": 2},
            "DCP=2 shares copies of a KV cache: TP=4 splits its 4 heads, and no rank keeps a copy",
        ),
    ],
)
def test_a_split_that_no_fleet_can_make_is_explained(model, parallel, reason):
    assert impossible_split(Parallel(**parallel), checkpoint_from_config(CONFIGS[model], id=model)) == reason
