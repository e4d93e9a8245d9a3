import pytest

from sparkfleet.perf.memory.demand import MemoryBudget, fits
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.units import GIB


def band(mid, spread=0.0):
    return Band(low=(mid - spread) * GIB, mid=mid * GIB, high=(mid + spread) * GIB)


def test_fits_with_its_upper_end_and_is_tight_with_its_middle():
    room = MemoryBudget(careful=100 * GIB, at_most=110 * GIB)
    assert fits(band(90, 10), room) == "fits"
    assert fits(band(95, 10), room) == "tight"
    assert fits(band(110, 10), room) == "tight"
    assert fits(band(110.1, 0), room) == "no"


def test_at_the_edge_the_lower_end_is_enough_on_an_empty_node(sparks):
    fleet = sparks(2)
    ledger = MemoryLedger(fleet)
    (pool,) = fleet.pools(1)
    most = ledger.room("spark1").at_most / GIB
    over = band(most + 2, 3)
    assert fits(over, ledger.room("spark1")) == "no"
    assert fits(over, ledger.room("spark1"), edge=True) == "tight"
    assert ledger.place(pool, over) is None
    ledger.put("first", ("spark1",), 1)
    assert ledger.place(pool, over, edge=True) == ("spark2",)
    ledger.put("second", ("spark2",), 1)
    assert ledger.place(pool, over, edge=True) is None


def test_an_empty_node_comes_before_one_in_use(sparks):
    fleet = sparks(3)
    ledger = MemoryLedger(fleet)
    (pool,) = fleet.pools(1)
    ledger.put("first", ("spark2",), 10 * GIB)
    assert ledger.place(pool, band(20)) == ("spark1",)
    ledger.put("second", ("spark1",), 20 * GIB)
    assert ledger.place(pool, band(20)) == ("spark3",)


def test_among_equals_the_fullest_that_has_room(sparks):
    fleet = sparks(2)
    ledger = MemoryLedger(fleet)
    (pool,) = fleet.pools(1)
    ledger.put("a", ("spark1",), 20 * GIB)
    ledger.put("b", ("spark2",), 50 * GIB)
    assert ledger.place(pool, band(10)) == ("spark2",)
    assert ledger.place(pool, band(70)) == ("spark1",)
    assert ledger.place(pool, band(112)) is None
    assert ledger.beside(("spark1", "spark2")) == ("a", "b")


def test_noise_in_the_free_memory_of_idle_nodes_does_not_scatter_a_group(sparks):
    fleet = sparks(8, switch=True)
    nodes = tuple(
        node.model_copy(
            update={
                "memory": node.memory.model_copy(
                    update={"available": node.memory.available - noise * (GIB >> 4)}
                )
            }
        )
        for node, noise in zip(fleet.nodes, (16, 3, 0, 9, 1, 8, 2, 5), strict=True)
    )
    fleet = fleet.model_copy(update={"nodes": nodes, "assumed": ()})
    ledger = MemoryLedger(fleet)
    (pair,), (four,) = fleet.pools(2), fleet.pools(4)
    assert ledger.place(pair, band(20)) == ("spark1", "spark2")
    ledger.put("pair", ("spark1", "spark2"), 20 * GIB)
    assert ledger.place(four, band(20)) == ("spark3", "spark4", "spark5", "spark6")


def test_where_it_runs_is_kept(sparks):
    fleet = sparks(4, switch=True)
    ledger = MemoryLedger(fleet)
    (pool,) = fleet.pools(2)
    assert ledger.place(pool, band(20), prefer=("spark4", "spark3")) == ("spark4", "spark3")
    assert len(ledger.place(pool, band(20), prefer=("gone", "spark3"))) == 2


def test_what_is_given_back_is_room(sparks):
    fleet = sparks(1, assumed=False)
    without, with_ = MemoryLedger(fleet), MemoryLedger(fleet, {"spark1": 10 * GIB})
    assert with_.room("spark1").careful == pytest.approx(without.room("spark1").careful + 10 * GIB)


def test_loads_add_up(sparks):
    fleet = sparks(2)
    ledger = MemoryLedger(fleet)
    ledger.put("a", ("spark1", "spark2"), 30 * GIB)
    ledger.put("b", ("spark2",), 20 * GIB)
    one, two = ledger.loads()
    assert one.placed == (("a", 30 * GIB),)
    assert two.left == two.usable - 50 * GIB
    assert two.assumed
    assert two.usable < two.total


def test_what_is_taken_back_is_room_again(sparks):
    ledger = MemoryLedger(sparks(2))
    before = ledger.room("spark1")
    ledger.put("a", ("spark1", "spark2"), 30 * GIB)
    assert ledger.room("spark1").careful == before.careful - 30 * GIB
    ledger.take_back("a", ("spark1", "spark2"), 30 * GIB)
    assert ledger.room("spark1") == before
    assert ledger.beside(("spark1", "spark2")) == ()


def test_the_best_room_of_a_pair_is_that_of_the_emptiest_two(sparks):
    fleet = sparks(4, switch=True)
    ledger = MemoryLedger(fleet)
    (pool,) = fleet.pools(2)
    ledger.put("a", ("spark1",), 90 * GIB)
    ledger.put("b", ("spark2",), 20 * GIB)
    assert ledger.best(pool) == ledger.room("spark4")
    ledger.put("c", ("spark3",), 50 * GIB)
    assert ledger.best(pool) == ledger.room("spark2")


def test_what_is_spared_is_left_on_each_node_and_nothing_is_placed_for_it(sparks):
    fleet = sparks(2)
    whole, spared = MemoryLedger(fleet), MemoryLedger(fleet, spare=GIB)
    for name in fleet.by_name:
        assert spared.room(name) == whole.room(name).plus(-GIB)
        assert spared.beside([name]) == ()
