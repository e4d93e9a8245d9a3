"""Searches for cycles in a process that serves."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, gc
from sparkfleet.runtime import still_heap
from sparkfleet.runtime.still_heap import YOUNG, StillHeap

class Node:
    pass

def cycle():
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one

def nodes():
    return sum(type(one) is Node for one in gc.get_objects())

before = [[number] for number in range(500_000)]
heap = StillHeap()
heap.begin()
assert gc.get_freeze_count() > 500_000
assert len(gc.get_objects()) < 100_000

# Each object is looked at once while it is young.
looked_at = []
gc.callbacks.insert(0, lambda phase, info: phase == "start" and looked_at.append(len(gc.get_objects())))
held = [[number] for number in range(10 * YOUNG)]
assert heap.searches >= 9
assert max(looked_at) < 2 * YOUNG, looked_at

# A cycle of young objects is freed by the next search; one that forms later by a look at all of them.
gc.collect()
gc.freeze()
cycle()
more = [[number] for number in range(YOUNG)]
gc.unfreeze()
assert nodes() == 0
gc.freeze()
late = cycle()
more = [[number] for number in range(YOUNG)]
del late
heap.searches = still_heap.WORTH - 1
still_heap.CHECK_S = 0.01
at_rest = False

async def main():
    global at_rest
    keeping = asyncio.create_task(heap.keep(lambda: at_rest))
    async def found(seconds):
        await asyncio.sleep(seconds)
        gc.unfreeze()
        count = nodes()
        gc.freeze()
        return count
    at_rest = True
    assert await found(0.1) == 2, "not worth it"
    heap.searches, at_rest = still_heap.WORTH, False
    assert await found(0.1) == 2, "not at rest"
    at_rest = True
    assert await found(0.1) == 0
    late = cycle()
    gc.freeze()
    del late
    heap.searches, at_rest = still_heap.MOST, False
    assert await found(0.1) == 0
    keeping.cancel()

asyncio.run(main())
heap.end()
assert (gc.get_freeze_count(), gc.get_threshold()[0]) == (0, 700)
print("ok")
"""


def test_objects_are_looked_at_once_and_the_rest_at_rest() -> None:
    """With Python's own generations up to 160,000 objects of 1,000 streams were searched in one step."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr
