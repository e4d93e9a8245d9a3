import json

import pytest

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.link_measurements import (
    LinkMeasurement,
    RailMeasurement,
    TransportProof,
    load_measurements,
    measured_links,
    save_measurements,
)
from sparkfleet.hostfacts.network.link import LinkProvenance
from sparkfleet.planner.place.fleet_map import links_of


def measurement(nodes=("spark1", "spark2"), rate=12.255, latency=1.5, method="ib_write_bw", **more):
    rails = tuple(
        RailMeasurement(netdev=name, method=method, gb_per_s=rate, latency_us=latency) for name in ("a", "b")
    )
    proof = TransportProof(moved={}, holds=more.pop("holds", True), said="")
    return LinkMeasurement(nodes=nodes, rails=rails, proof=proof, when=more.pop("when", 1.0), **more)


def test_a_healthy_cable_has_the_published_numbers(two):
    (published,) = links_of(two)
    (facts,) = measured_links(two, [measurement()])
    assert facts.provenance is LinkProvenance.MEASURED
    assert facts.gb_per_s == pytest.approx(published.gb_per_s)
    assert facts.latency_us == pytest.approx(published.latency_us)


def test_a_degraded_cable_is_slower_by_as_much(two):
    (published,) = links_of(two)
    (facts,) = measured_links(two, [measurement(rate=13 / 8, latency=5.5)])
    assert facts.gb_per_s == pytest.approx(published.gb_per_s * 13 / 98.04, rel=1e-3)
    assert facts.latency_us == pytest.approx(published.latency_us + 4)


@pytest.mark.parametrize(
    "useless",
    [measurement(method="TCP"), measurement(holds=False), measurement(nodes=("spark1", "spark3")),
     measurement(switch="sw")],
)  # fmt: skip
def test_tcp_measurements_of_a_roce_link_are_left_out(two, useless):
    assert measured_links(two, [useless]) == links_of(two)


def test_a_cable_of_a_switch_is_as_fast_as_its_fastest_pair(switched):
    pairs = (("s1", "s2"), ("s2", "s3"), ("s1", "s3"))
    measured = [measurement(pair, rate=1.6 if "s3" in pair else 12.255, switch="sw") for pair in pairs]
    one, two, three = measured_links(switched(3), measured)
    assert one.gb_per_s == two.gb_per_s, "a slow neighbour is not their fault"
    assert three.gb_per_s < one.gb_per_s / 5


def test_a_cable_that_became_slow_is_not_as_fast_as_in_an_older_run(switched):
    """s3 and s1 were a pair before s4 came between them; nothing replaces that measurement."""
    before = [measurement(pair, switch="sw", when=1e9) for pair in (("s1", "s2"), ("s2", "s3"), ("s3", "s1"))]
    rates = {("s1", "s2"): 1.6, ("s2", "s3"): 12.255, ("s3", "s4"): 12.255, ("s4", "s1"): 1.6}
    now = [
        measurement(pair, rate=rate, switch="sw", when=1e9 + 86400 + 15 * at)
        for at, (pair, rate) in enumerate(rates.items())
    ]
    slow, *others = measured_links(switched(4), [*before, *now])
    assert slow.gb_per_s < others[0].gb_per_s / 5
    assert len({one.gb_per_s for one in others}) == 1


def test_a_cable_that_was_measured_from_its_other_end_has_the_newer_number(two):
    older, newer = measurement(when=1e9), measurement(("spark2", "spark1"), rate=1.6, when=1e9 + 86400)
    assert measured_links(two, [older, newer]) == measured_links(two, [newer])


def test_measurements_are_kept_and_replaced_by_pair(tmp_path):
    file = tmp_path / "state" / "links.json"
    assert load_measurements(file) == ()
    save_measurements(file, [measurement(), measurement(("a", "b"))])
    save_measurements(file, [measurement(rate=1.0)])
    kept = {one.nodes: one.gb_per_s for one in load_measurements(file)}
    assert kept == {("spark1", "spark2"): 2.0, ("a", "b"): pytest.approx(24.51)}


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, json.dumps({"version": 2, "links": []}), "\xff"])
def test_a_file_that_was_edited_is_an_error(tmp_path, text):
    file = tmp_path / "links.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SparkfleetError, match="contains no link measurements"):
        load_measurements(file)
