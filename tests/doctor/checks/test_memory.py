"""Memory that is free for engines, on Sparks of both sizes."""

from __future__ import annotations

import pytest

from sparkfleet.doctor.checks.memory import memory_free
from sparkfleet.doctor.findings import CheckFault
from sparkfleet.doctor.snapshot import NodeSnapshot
from sparkfleet.hostfacts.memory import MemoryMap
from sparkfleet.hostfacts.processes import HoldingProcess
from sparkfleet.units import GIB


def faults(total: int, available: int, *, ours: bool | None = None) -> list[CheckFault]:
    """Faults of a node with so many GiB; `ours`: it has one process, which is sparkfleet's or another's."""
    rest = {"page_cache": 0, "swap_total": 0, "swap_used": 0, "named": total * GIB}
    memory = MemoryMap(total=total * GIB, free=available * GIB, available=available * GIB, **rest)
    holding = HoldingProcess(pid=1, resident=GIB, uid=1000, command="engine", ours=ours)
    node = NodeSnapshot(name="spark1", processes=() if ours is None else (holding,))
    return [*memory_free.look(node=node, memory=memory)]


@pytest.mark.parametrize("total", [60, 122])
def test_a_spark_with_little_memory_left_is_named(total: int) -> None:
    (found,) = faults(total, 9)
    assert (found.severity, found.what) == ("warning", f"spark1: 9 of {total} GiB are available")
    assert len(faults(total, 9, ours=False)) == 1


@pytest.mark.parametrize("total", [60, 122])
def test_enough_memory_is_no_fault(total: int) -> None:
    assert faults(total, 11) == []


def test_memory_of_our_own_engines_is_no_fault() -> None:
    assert faults(122, 9, ours=True) == []


def test_a_small_machine_is_no_spark() -> None:
    assert faults(24, 5) == []
