"""Measurements of links: kept in a file, and as numbers of the planner. `measure.py` makes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sparkfleet.errors import SparkfleetError
from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.planner.place.fleet_map import links_of
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

BY_RDMA = "ib_write_bw"
"""Method of a measurement whose bytes went by RDMA."""
HEALTHY_RAIL_GB_PER_S = 12.255
"""`ib_write_bw` on one half with both loaded, MTU 9000, 4 QPs: 98.04 Gb/s (public log of a healthy pair)."""
HEALTHY_LATENCY_US = 1.5
"""`ib_write_lat` on a healthy cable (DoctorMasterNewb/sparkbase wiki)."""
RUN_S = 3600.0
"""Longer than one run takes. What an older one found of a cable is past, also of pairs that are not measured any more: a
node that came between two others at a switch, or another order of them in the inventory, ends their pair."""
FILE_VERSION = 1


class RailMeasurement(Value):
    """One rail, loaded together with the others of its link."""

    netdev: str
    """Device of the sending end."""
    method: str
    gb_per_s: float
    """1e9 bytes per second, one way."""
    latency_us: float
    """One-way latency of a small message on the idle rail, microseconds."""


class TransportProof(Value):
    """Devices that carried the bytes while a link was under load."""

    moved: dict[str, int]
    """Bytes sent by each device of the sending node, the rails' first."""
    holds: bool
    said: str
    """One sentence with the numbers."""


class LinkMeasurement(Value):
    """One pair of nodes that a link joins, by cable or through a switch."""

    nodes: tuple[str, str]
    switch: str | None = None
    rails: tuple[RailMeasurement, ...]
    proof: TransportProof
    when: float
    """Seconds since 1970."""

    @property
    def gb_per_s(self) -> float:
        """All rails together."""
        return sum(rail.gb_per_s for rail in self.rails)

    @property
    def latency_us(self) -> float:
        """Latency of the slowest rail: a collective waits for it."""
        return max(rail.latency_us for rail in self.rails)

    @property
    def by_rdma(self) -> bool:
        """True if every byte went by RDMA."""
        return all(rail.method == BY_RDMA for rail in self.rails)


class UnmeasuredLink(Value):
    """One pair of nodes that a link joins and that could not be measured."""

    nodes: tuple[str, str]
    switch: str | None = None
    what: str
    """The error, with its rail if it is one rail's."""
    do: str
    """The remedy; empty if none is known."""


class _File(Value):
    version: int
    links: tuple[LinkMeasurement, ...]


def save_measurements(path: Path, measured: Sequence[LinkMeasurement]) -> Path:
    """Saves measurements to a JSON file; older ones of other pairs stay in it.

    Raises:
        OSError: the file cannot be written.
        SparkfleetError: the file that is there was edited, or is of another version.
    """
    kept = {(one.nodes, one.switch): one for one in (*load_measurements(path), *measured)}
    content = _File(version=FILE_VERSION, links=tuple(kept.values())).model_dump_json(indent=2)
    write_atomically(path, content.encode())
    return path


def load_measurements(path: Path) -> tuple[LinkMeasurement, ...]:
    """Saved measurements; empty if there are none.

    Raises:
        SparkfleetError: the file was edited, or is of another version.
    """
    try:
        found = _File.model_validate(json.loads(path.read_bytes()), strict=False)
    except FileNotFoundError:
        return ()
    except (ValueError, RecursionError, ValidationError):
        found = None
    if found is None or found.version != FILE_VERSION:
        raise SparkfleetError(
            f"{path} contains no link measurements.",
            do="Delete it; `sparkfleet fabric measure` writes a new one.",
        )
    return found.links


def measured_links(inventory: Inventory, measured: Sequence[LinkMeasurement]) -> tuple[LinkFacts, ...]:
    """The links of `links_of`, with measured numbers if there are valid ones.

    Of a RoCE link only RDMA measurements count: TCP does not predict the speed of NCCL on it. Raw numbers are not
    collectives: a published all-reduce on a healthy cable is scaled by the ratio of this cable's raw bandwidth to that
    one's, and its latency is shifted by the difference of the raw latencies.
    """
    return tuple(_measured(facts, measured) for facts in links_of(inventory))


def _measured(facts: LinkFacts, measured: Sequence[LinkMeasurement]) -> LinkFacts:
    mine = [
        one
        for one in measured
        if _is_of(one, facts) and one.proof.holds and one.by_rdma == (facts.kind == "roce")
    ]
    if not mine:
        return facts
    newest = max(one.when for one in mine)
    mine = [one for one in mine if one.when >= newest - RUN_S]
    # A pair at a switch is as slow as the slower of its two cables: that of a node is as fast as its best pair.
    speed = max(one.gb_per_s for one in mine)
    latency = min(one.latency_us for one in mine)
    if facts.kind == "tcp":
        # An all-reduce of two nodes takes a message in each direction.
        numbers = {"gb_per_s": speed, "latency_us": 2 * latency}
    else:
        share = speed / (HEALTHY_RAIL_GB_PER_S * facts.rails)
        shift = latency - HEALTHY_LATENCY_US
        numbers = {"gb_per_s": facts.gb_per_s * share, "latency_us": max(latency, facts.latency_us + shift)}
    return facts.model_copy(update={**numbers, "provenance": LinkProvenance.MEASURED})


def _is_of(one: LinkMeasurement, facts: LinkFacts) -> bool:
    if facts.switch is not None:
        return one.switch == facts.switch and facts.nodes[0] in one.nodes
    return one.switch is None and set(one.nodes) == set(facts.nodes)
