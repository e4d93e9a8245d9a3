"""Measures between nodes for the checks: speed and path by `fabric`, full-size packets by ping."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.snapshot import EndSnapshot, FleetReadings, PathSnapshot, RailSpeed
from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.link_measurements import LinkMeasurement
from sparkfleet.fabric.measure import NodeLocks, Pair, measure_pair, pairs_of
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.specs.inventory import Inventory, RailEnd

LOAD_S = 2.0
"""Seconds for which the rails of a pair are loaded."""
PAIR_S = 60.0
PING_S = 10.0
ANSWER_S = 1
LATE_ANSWER_S = 4
"""Seconds for an answer at a second attempt."""
HEADERS = 28
"""Headers of IPv4 and ICMP, bytes."""

_TIMES = re.compile(r"^rtt min/avg/max/mdev = [\d.]{1,12}/([\d.]{1,12})/", re.MULTILINE | re.ASCII)
_RECEIVED = re.compile(r"\b(\d{1,6}) received", re.ASCII)


class MeasuredPaths(NamedTuple):
    """Measurements for the checks, and those that are kept for the planner."""

    paths: tuple[PathSnapshot, ...]
    kept: tuple[LinkMeasurement, ...]


async def measure_paths(
    inventory: Inventory, fleet: FleetReadings, channels: Mapping[str, Channel]
) -> MeasuredPaths:
    """Measures every pair of linked nodes that answered. Pairs that share a node run one after the other.

    A path that cannot be measured has the reason in `why_not`.
    """
    locks, answered = NodeLocks(), {node.name for node in fleet.answered}
    asked = [pair for pair in pairs_of(inventory) if {node.name for node in fleet.nodes} >= set(pair.nodes)]
    found = await asyncio.gather(*(_measure_path(pair, locks, answered, channels) for pair in asked))
    return MeasuredPaths(tuple(path for path, _ in found), tuple(one for _, one in found if one is not None))


async def _measure_path(
    pair: Pair, locks: NodeLocks, answered: Collection[str], channels: Mapping[str, Channel]
) -> tuple[PathSnapshot, LinkMeasurement | None]:
    path = path_of(pair)
    silent = [name for name in pair.nodes if name not in answered]
    if silent:
        return path.model_copy(update={"why_not": f"{silent[0]} did not answer"}), None
    async with locks.of(pair):
        path = await _ping(path, channels[pair.nodes[0]])
        try:
            async with asyncio.timeout(PAIR_S):
                measured = await measure_pair(pair, channels, seconds=LOAD_S)
        except SparkfleetError as error:
            return _unmeasured(path, error.what), None
        except TimeoutError:
            return _unmeasured(path, f"measuring did not end within {PAIR_S:.0f} s"), None
    return with_measurement(path, measured), measured


def path_of(pair: Pair) -> PathSnapshot:
    """A pair without measurements."""
    here, there = pair.nodes
    return PathSnapshot(
        name=f"{here}–{there}" + (f" over {pair.switch}" if pair.switch else ""),
        nodes=pair.nodes,
        switch=pair.switch,
        rails=tuple(RailSpeed(here=_end(here, one), there=_end(there, other)) for one, other in pair.rails),
    )


def _end(node: str, end: RailEnd) -> EndSnapshot:
    return EndSnapshot(node=node, netdev=end.netdev, rdma=end.rdma, address=end.address)


def _unmeasured(path: PathSnapshot, why: str) -> PathSnapshot:
    """The path with the reason, beside the results of its pings if there are any."""
    known = any(rail.jumbo is not None for rail in path.rails)
    return path.model_copy(update={"not_loaded" if known else "why_not": why})


def with_measurement(path: PathSnapshot, measured: LinkMeasurement) -> PathSnapshot:
    """The path with speeds and the proof."""
    by_netdev = {rail.netdev: rail for rail in measured.rails}
    rails = (
        rail.model_copy(
            update={
                "gbit_per_s": by_netdev[rail.here.netdev].gb_per_s * 8,
                "one_way_us": by_netdev[rail.here.netdev].latency_us,
                "measured_with": by_netdev[rail.here.netdev].method,
            }
        )
        for rail in path.rails
    )
    return path.model_copy(update={"rails": tuple(rails), "proof": measured.proof})


async def _ping(path: PathSnapshot, channel: Channel) -> PathSnapshot:
    """Pings every rail with full-size and small packets, in one round trip; those that lost all of them once more."""
    rails = await _answers(path.rails, channel, ANSWER_S)
    again = [rail for rail in rails if False in (rail.jumbo, rail.reached)]
    if again:  # a node under load answers late
        later = {one.here.netdev: one for one in await _answers(again, channel, LATE_ANSWER_S)}
        rails = [_either(rail, later.get(rail.here.netdev)) for rail in rails]
    return path.model_copy(update={"rails": tuple(rails)})


async def _answers(rails: Sequence[RailSpeed], channel: Channel, wait_s: int) -> list[RailSpeed]:
    argvs = [
        ping(rail.here.netdev, rail.there.ip, size, wait_s)
        for rail in rails
        for size in (thresholds.RAIL_MTU - HEADERS, 56)
    ]
    try:
        answers: Sequence[Completed | SparkfleetError] = await run_batch(channel, argvs, timeout_s=PING_S)
    except SparkfleetError as error:
        answers = [error] * len(argvs)
    full, small = answers[::2], answers[1::2]
    return [
        rail.model_copy(update={"jumbo": passed(one), "reached": passed(other), "ping_us": average_us(other)})
        for rail, one, other in zip(rails, full, small, strict=True)
    ]


def _either(first: RailSpeed, second: RailSpeed | None) -> RailSpeed:
    """Joins two attempts: a packet that came back once did not get lost on the rail."""
    if second is None:
        return first
    better = first if first.reached else second
    jumbo = first.jumbo or second.jumbo
    return better.model_copy(update={"jumbo": jumbo})


def ping(netdev: str, address: str, size: int, wait_s: int = ANSWER_S) -> tuple[str, ...]:
    """The command: five packets of `size` bytes that may not be fragmented; the last one is waited for so long."""
    return (
        "ping",
        "-n",
        "-c",
        "5",
        "-i",
        "0.2",
        "-W",
        str(wait_s),
        "-M",
        "do",
        "-s",
        str(size),
        "-I",
        netdev,
        address,
    )


def passed(answer: Completed | SparkfleetError) -> bool | None:
    """True if any of the packets came back; None if `ping` could not run, or not on this device."""
    if not isinstance(answer, Completed):
        return None
    found = _RECEIVED.search(answer.stdout[:20_000])
    if found is None:
        # "ping: local error: message too long" is an answer: the packet does not even leave the node.
        return False if "too long" in answer.stderr else None
    return int(found[1]) > 0


def average_us(answer: Completed | SparkfleetError) -> float | None:
    """The average round trip, microseconds."""
    found = _TIMES.search(answer.stdout[:20_000]) if isinstance(answer, Completed) else None
    try:
        return float(found[1]) * 1000 if found else None
    except ValueError:  # several dots
        return None
