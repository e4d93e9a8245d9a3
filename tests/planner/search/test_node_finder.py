"""Groups at a switch where one node's cable is slower than the others': it is used before two groups share a node."""

import pytest

from sparkfleet.planner.place.fleet_map import Fleet

TP4 = {"model": "openai/gpt-oss-120b", "parallel": {"tp": 4}}


@pytest.fixture
def eight(sparks, link):
    """eight(**of the cable of spark5) → eight Sparks at one switch."""

    def make(**slow):
        fleet = sparks(8, switch=True)
        links = tuple(
            link("spark5", switch="sw", **slow) if one.nodes == ("spark5",) else one for one in fleet.links
        )
        return fleet.model_copy(update={"links": links})

    return make


def nodes(*plans):
    return [group.choice.candidate.shape.nodes for plan in plans for group in plan.groups]


EVERY = [("spark1", "spark2", "spark3", "spark4"), ("spark5", "spark6", "spark7", "spark8")]


@pytest.mark.parametrize("slow", [{"gb_per_s": 13.1}, {"rails": 1, "gb_per_s": 11.0}, {"latency_us": 60.0}])
def test_replicas_take_the_node_with_the_slower_cable_before_they_share_one(eight, plan, ask, slow):
    (found,) = plan(eight(**slow), ask(**TP4, replicas=2)).deployments
    assert nodes(found) == EVERY


def test_so_do_two_deployments(eight, plan, ask):
    """The second of two took spark1 again, and spark5 idled."""
    found = plan(eight(gb_per_s=13.1), ask(**TP4, name="one"), ask(**TP4, name="other")).deployments
    assert nodes(*found) == EVERY


def test_one_group_alone_has_the_fast_cables(sparks, link, plan, ask):
    fleet = sparks(8, switch=True)
    links = (link("spark1", switch="sw", gb_per_s=13.1), *fleet.links[1:])
    (found,) = plan(fleet.model_copy(update={"links": links}), ask(**TP4)).deployments
    assert nodes(found) == [("spark2", "spark3", "spark4", "spark5")]


def test_engines_on_the_cpu_do_the_same(eight, plan, ask, cpu_node):
    fleet = eight(gb_per_s=13.1)
    fleet = Fleet(name="lab", nodes=tuple(cpu_node(one.name) for one in fleet.nodes), links=fleet.links)
    (found,) = plan(fleet, ask("builtin:tiny", parallel={"tp": 4}, replicas=2)).deployments
    assert nodes(found) == EVERY
