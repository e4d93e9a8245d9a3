"""Fleets of Sparks that nobody needs to have."""

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.nodes.assumed import MOST_SPARKS, assume, assumed_inventory
from sparkfleet.planner.place.fleet_map import links_of
from sparkfleet.specs.load import parse_inventory, to_yaml


@pytest.mark.parametrize("count", [1, 2, 3, 8, MOST_SPARKS])
def test_an_inventory_of_idle_sparks(count: int) -> None:
    found = assumed_inventory(count)
    assert list(found.nodes) == [f"spark{number}" for number in range(1, count + 1)]
    assert found.head == "spark1"
    assert parse_inventory(to_yaml(found)) == found
    links = links_of(found)
    cabled = {name for link in links for name in link.nodes}
    assert cabled == (set(found.nodes) if count > 1 else set())
    assert all(link.rails == 2 and link.kind == "roce" for link in links)
    assert {link.switch for link in links} == ({"switch"} if count > 2 else {None} if count == 2 else set())


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ("dgx-spark", (131, 131)),
        ("dgx-spark-64", (64, 64)),
        ("dgx-spark,dgx-spark-64", (131, 64)),
        ("dgx-spark-64,dgx-spark-128", (64, 131)),
    ],
)
def test_a_kind_for_all_nodes_or_one_for_each(kinds: str, sizes: tuple[int, ...]) -> None:
    facts = assume(kinds, assumed_inventory(2))
    assert tuple(round(node.memory.total / 1e9) for node in facts) == sizes


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ("dgx-spark,dgx-spark,dgx-spark", "3 kinds for 2 nodes, 3 of them known"),
        ("dgx-spark,dgx", "2 kinds for 2 nodes, 1 of them known"),
        ("dgx-spark,", "2 kinds for 2 nodes, 1 of them known"),
    ],
)
def test_kinds_that_are_not_those_of_the_nodes(kinds: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        assume(kinds, assumed_inventory(2))
