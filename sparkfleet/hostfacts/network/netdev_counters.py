"""Byte counters of a node's netdevs, as the kernel counts them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparkfleet.hostfacts.fact import Fact
from sparkfleet.hostfacts.network.iproute import Entry, Word, entries
from sparkfleet.values import Value

Counter = Annotated[int, Field(ge=0, le=(1 << 64) - 1)]


class Traffic(Value):
    """Bytes that a netdev has sent since it came up. RDMA bypasses the kernel and is not included."""

    netdev: str
    tx_bytes: int


class _RawCount(Entry):
    bytes: Counter = 0


class _RawStats(Entry):
    tx: _RawCount


class _RawTraffic(Entry):
    ifname: Word
    stats64: _RawStats | None = None


class ReadTraffic(Fact[tuple[Traffic, ...]]):
    """Bytes that every netdev has sent."""

    argv = ("ip", "-j", "-s", "link", "show")

    @staticmethod
    def parse(output: str) -> tuple[Traffic, ...]:
        """iproute2's JSON. Raises FactError for anything else."""
        raw = entries(_RawTraffic, output, "traffic counters")
        return tuple(_traffic(one.ifname, one.stats64) for one in raw if one.stats64)


def _traffic(netdev: str, stats: _RawStats) -> Traffic:
    return Traffic(netdev=netdev, tx_bytes=stats.tx.bytes)
