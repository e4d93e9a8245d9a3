"""Blocks of free memory, from /proc/buddyinfo."""

import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.memory import ReadFreeBlocks
from sparkfleet.units import GIB, KIB, MIB

HERE = "/proc/buddyinfo:Node 0, zone   Normal      1  43205  20368   9047   4785   2054   1083    309    160    167   1365\n"


def parsed(zones, huge="2048"):
    lines = [f"/proc/buddyinfo:Node 0, zone {name} {' '.join(map(str, counts))}" for name, counts in zones]
    return ReadFreeBlocks.parse("\n".join([*lines, f"/proc/meminfo:Hugepagesize:   {huge} kB"]))


@pytest.mark.parametrize(("huge", "page"), [("2048", 4 * KIB), ("32768", 16 * KIB), ("524288", 64 * KIB)])
def test_a_column_is_blocks_of_twice_the_size_of_the_one_before(huge, page):
    assert parsed([("Normal", [3, 5, 7])], huge).free == page * (3 + 10 + 28)


def test_large_blocks_of_all_zones_are_counted():
    counts = [0] * 12 + [1417, 782]
    found = parsed([("DMA", [0] * 12 + [1, 0]), ("Normal", counts)])
    assert found.large == found.free == 1418 * 16 * MIB + 782 * 32 * MIB
    assert found.large / GIB == pytest.approx(46.6, abs=0.05)


def test_a_kernel_that_keeps_no_large_blocks_has_none_to_count():
    """As x86-64's own, whose largest have 4 MiB."""
    found = ReadFreeBlocks.parse(f"{HERE}/proc/meminfo:Hugepagesize:       2048 kB\n")
    assert found.large is None
    assert found.free > 5 * GIB


@pytest.mark.parametrize(
    "output",
    ["", HERE, f"{HERE}/proc/meminfo:Hugepagesize: 1048576 kB\n", "/proc/meminfo:Hugepagesize: 2048 kB\n"],
)
def test_without_the_size_of_a_page_nothing_is_known(output):
    with pytest.raises(FactError):
        ReadFreeBlocks.parse(output)
