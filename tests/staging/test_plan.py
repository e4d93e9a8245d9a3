from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.specs.inventory import Inventory, Link, Node, RailEnd
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.plan import (
    LAN_BYTES_PER_S,
    MAX_SENDS,
    RAIL_BYTES_PER_S,
    Have,
    linked,
    plan,
    puller,
    route,
    to_move,
)
from sparkfleet.units import GB

KEY = "SHA256:" + "A" * 43
BIG = File(path="model.safetensors", size=40 * GB, digest="a" * 64)
SMALL = File(path="config.json", size=1000, digest="b" * 64)
MODEL = Manifest(kind="hub", name="o/n", commit="1" * 40, files=(BIG, SMALL))
ALL = {BIG.digest: BIG.size, SMALL.digest: SMALL.size}
NOTHING = Have(free_bytes=1000 * GB)
WHOLE = Have(free_bytes=1000 * GB, held=ALL)


def fleet(count: int, links: tuple[Link, ...] = ()) -> Inventory:
    nodes = {f"n{i}": Node(address=f"192.168.1.{i + 10}", user="u", host_key=KEY) for i in range(count)}
    return Inventory(fleet="f", head="n0", nodes=nodes, links=links)


def cable(number: int, one: int, other: int) -> Link:
    rails = tuple(
        tuple(
            RailEnd(netdev=f"c{number}r{rail}", address=f"10.{number}.{rail}.{node + 1}/24")
            for node in (one, other)
        )
        for rail in (0, 1)
    )
    return Link(nodes=(f"n{one}", f"n{other}"), rails=rails)


def at_switch(node: int) -> Link:
    rails = tuple((RailEnd(netdev=f"r{rail}", address=f"10.100.{rail}.{node + 1}/24"),) for rail in (0, 1))
    return Link(nodes=(f"n{node}",), switch="s", rails=rails)


def switched(count: int) -> Inventory:
    return fleet(count, tuple(at_switch(node) for node in range(count)))


def ring(count: int) -> Inventory:
    return fleet(count, tuple(cable(i, i, (i + 1) % count) for i in range(count)))


def planned(inventory, have, targets=None, reserve=0):
    return plan(inventory, MODEL, have, targets or list(have), reserve)


def moves(found):
    return [(copy.round, copy.source, copy.target) for copy in found.copies]


def test_two_linked_nodes_use_both_rails():
    found = planned(fleet(2, (cable(0, 0, 1),)), {"n0": WHOLE, "n1": NOTHING})
    assert moves(found) == [(1, "n0", "n1")]
    (copy,) = found.copies
    assert copy.route.over == "link"
    assert [(way.source_address, way.target_address) for way in copy.route.ways] == [
        ("10.0.0.1", "10.0.0.2"),
        ("10.0.1.1", "10.0.1.2"),
    ]
    assert copy.bytes == MODEL.size
    assert found.predicted_s == pytest.approx(MODEL.size / (2 * RAIL_BYTES_PER_S))


def test_the_cable_is_used_in_either_direction():
    back = route(fleet(2, (cable(0, 0, 1),)), "n1", "n0")
    assert [(way.source_address, way.target_address) for way in back.ways] == [
        ("10.0.0.2", "10.0.0.1"),
        ("10.0.1.2", "10.0.1.1"),
    ]


def test_over_a_switch_every_round_doubles_the_copies():
    have = {f"n{i}": WHOLE if i == 0 else NOTHING for i in range(8)}
    found = planned(switched(8), have)
    assert [sum(copy.round == number for copy in found.copies) for number in (1, 2, 3)] == [1, 2, 4]


def test_in_a_ring_of_three_both_cables_carry_at_once():
    found = planned(ring(3), {"n0": WHOLE, "n1": NOTHING, "n2": NOTHING})
    assert sorted(moves(found)) == [(1, "n0", "n1"), (1, "n0", "n2")]


def test_in_a_ring_of_four_it_goes_from_neighbour_to_neighbour():
    found = planned(ring(4), {"n0": WHOLE, "n1": NOTHING, "n2": NOTHING, "n3": NOTHING})
    assert len(found.copies) == 3
    assert all(copy.route.over == "link" for copy in found.copies)
    assert max(copy.round for copy in found.copies) == 2


def test_without_a_link_the_route_is_the_lan():
    found = planned(fleet(2), {"n0": WHOLE, "n1": NOTHING})
    (copy,) = found.copies
    assert copy.route.over == "lan"
    assert copy.route.ways[0].target_address == "192.168.1.11"
    assert copy.predicted_s == pytest.approx(MODEL.size / LAN_BYTES_PER_S)


def test_the_lan_is_taken_only_by_those_that_no_link_reaches():
    inventory = fleet(4, (cable(0, 0, 1), cable(1, 2, 3)))
    found = planned(inventory, {"n0": WHOLE, "n1": NOTHING, "n2": NOTHING, "n3": NOTHING})
    over = {copy.target: copy.route.over for copy in found.copies}
    assert sorted(over.values()) == ["lan", "link", "link"]
    assert over["n1"] == "link"


def local_and_remote():
    nodes = {"n0": Node(address="192.168.1.10", user="u", host_key=KEY), "n1": Node(address="local")}
    return Inventory(fleet="f", head="n0", nodes=nodes)


@pytest.mark.parametrize(("kind", "hub"), [("hub", False), ("directory", True)])
def test_a_node_on_this_machine_cannot_be_named_to_others(kind, hub):
    manifest = MODEL.model_copy(update={"kind": kind, "files": (BIG,)})
    whole = Have(free_bytes=1000 * GB, held={BIG.digest: BIG.size, BIG.path: BIG.size})
    with pytest.raises(StagingError, match="not linked"):
        plan(local_and_remote(), manifest, {"n0": whole, "n1": NOTHING}, ["n1"], 0, hub=hub)


def test_a_node_that_no_other_can_send_to_downloads_itself():
    """Nodes without a cable, one of them `local`: staging was refused although each reaches the Hub."""
    found = planned(local_and_remote(), {"n0": WHOLE, "n1": NOTHING})
    assert (found.pull, found.copies) == ("n1", ())
    assert "n0 and n1 are not linked" in found.no_route
    found = planned(local_and_remote(), {"n0": Have(free_bytes=2000 * GB), "n1": NOTHING})
    assert (found.pull, found.copies, found.no_route) == ("n0", (), ""), "n1 is in the next plan"


def test_copies_come_before_downloads_of_unreachable_nodes():
    nodes = {**local_and_remote().nodes, "n2": Node(address="192.168.1.12", user="u", host_key=KEY)}
    inventory = Inventory(fleet="f", head="n0", nodes=nodes)
    found = planned(inventory, {"n0": WHOLE, "n1": NOTHING, "n2": NOTHING})
    assert (found.pull, moves(found)) == ("", [(1, "n0", "n2")])


def test_any_holder_with_a_route_sends():
    jump = {"address": "10.0.0.1", "user": "u", "host_key": KEY}
    nodes = {
        "n0": Node(address="10.1.0.10", user="u", host_key=KEY, jump=jump),
        "n1": Node(address="192.168.1.11", user="u", host_key=KEY),
        "n2": Node(address="192.168.1.12", user="u", host_key=KEY),
    }
    inventory = Inventory(fleet="f", head="n1", nodes=nodes)
    found = planned(inventory, {"n0": WHOLE, "n1": WHOLE, "n2": NOTHING})
    assert moves(found) == [(1, "n1", "n2")]


def test_without_a_copy_one_node_pulls_and_the_others_copy():
    half = Have(free_bytes=100 * GB, held={SMALL.digest: 1000}, begun={BIG.digest: 20 * GB})
    found = planned(switched(3), {"n0": NOTHING, "n1": half, "n2": NOTHING})
    assert found.pull == "n1"
    assert {copy.target for copy in found.copies} == {"n0", "n2"}


def test_of_equals_the_one_with_most_room_pulls():
    roomy = Have(free_bytes=2000 * GB)
    assert puller(MODEL, {"n0": NOTHING, "n1": roomy}, ["n0", "n1"])[0] == "n1"


def test_a_node_that_needs_nothing_may_send():
    found = planned(switched(3), {"n0": WHOLE, "n1": NOTHING, "n2": NOTHING}, ["n1"])
    assert moves(found) == [(1, "n0", "n1")]


def test_all_there_is_no_plan():
    found = planned(switched(2), {"n0": WHOLE, "n1": WHOLE})
    assert (found.pull, found.copies, found.predicted_s) == ("", (), 0)


def test_too_little_room_is_refused_before_anything_moves():
    tight = Have(free_bytes=45 * GB)
    with pytest.raises(StagingError, match=r"n1 needs 40\.0 GB and has 45\.0 GB free") as refused:
        planned(switched(2), {"n0": WHOLE, "n1": tight}, reserve=10 * GB)
    assert "prune" in refused.value.do
    assert planned(switched(2), {"n0": WHOLE, "n1": tight}, reserve=5 * GB - 1000).copies


def test_partial_files_need_no_space_again():
    begun = Have(free_bytes=6 * GB, begun={BIG.digest: 35 * GB})
    assert to_move(MODEL, begun) == 5 * GB + 1000
    assert planned(switched(2), {"n0": WHOLE, "n1": begun}).copies[0].bytes == 5 * GB + 1000


def test_a_directory_on_no_node_cannot_be_pulled():
    manifest = MODEL.model_copy(update={"kind": "directory", "name": "/m"})
    with pytest.raises(StagingError, match="no node has /m"):
        plan(switched(2), manifest, {"n0": NOTHING, "n1": NOTHING}, ["n0"], 0)


@st.composite
def fleets(draw):
    count = draw(st.integers(1, 9))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=8))
    cables = {tuple(sorted(pair)) for pair in pairs if pair[0] != pair[1]}
    links = [cable(number, *pair) for number, pair in enumerate(sorted(cables))]
    links += [at_switch(node) for node in sorted(draw(st.sets(st.integers(0, count - 1))))]
    inventory = fleet(count, tuple(links))
    holders = draw(st.sets(st.integers(0, count - 1)))
    targets = draw(st.sets(st.integers(0, count - 1), min_size=1))
    begun = draw(st.sets(st.integers(0, count - 1)))
    have = {
        f"n{i}": WHOLE
        if i in holders
        else Have(free_bytes=1000 * GB, begun={BIG.digest: 7 * GB})
        if i in begun
        else NOTHING
        for i in range(count)
    }
    return inventory, have, [f"n{i}" for i in sorted(targets)]


@given(fleets())
def test_every_target_ends_with_it_and_no_node_sends_before_it_has_it(case):
    inventory, have, targets = case
    found = planned(inventory, have, targets)
    has = {node for node, held in have.items() if held.held} | ({found.pull} if found.pull else set())
    since = dict.fromkeys(has, 0)
    for copy in found.copies:
        assert since[copy.source] < copy.round
        assert copy.target not in since
        assert copy.bytes == to_move(MODEL, have[copy.target])
        since[copy.target] = copy.round
    assert set(targets) <= set(since)
    assert {copy.target for copy in found.copies} <= set(targets)


@given(fleets())
def test_sources_are_bounded_and_share_no_cable(case):
    inventory, have, targets = case
    found = planned(inventory, have, targets)
    for number in {copy.round for copy in found.copies}:
        at_once = [copy for copy in found.copies if copy.round == number]
        for source in {copy.source for copy in at_once}:
            mine = [copy for copy in at_once if copy.source == source]
            cables = [
                cable
                for copy in mine
                for cable in copy.route.cables
                if source in inventory.links[cable].nodes
            ]
            assert len(mine) <= MAX_SENDS
            assert len(cables) == len(set(cables))


@given(fleets())
def test_the_lan_is_for_those_that_no_link_reaches(case):
    inventory, have, targets = case
    for copy in planned(inventory, have, targets).copies:
        assert (copy.route.over == "link") == linked(inventory, copy.source, copy.target)
