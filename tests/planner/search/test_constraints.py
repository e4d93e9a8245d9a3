import pytest

from sparkfleet.hostfacts.node import NodeFacts, Processors, UnifiedMemory
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.constraints import mistaken
from sparkfleet.specs.deployment import Deployment


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
