"""Fleets of Sparks that nobody needs to have."""

from __future__ import annotations

import pytest

from sparkfleet.fleet.nodes.assumed import MOST_SPARKS, assumed_inventory
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
