"""What would fit where nothing does: shorter, fewer at once, on more nodes, in fewer bits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparkfleet.errors import FactError
from sparkfleet.planning.fleet import GROUP_SIZES
from sparkfleet.planning.outlook import Outlook, Settings, Split
from sparkfleet.planning.pack import Room
from sparkfleet.planning.plan import Speculation
from sparkfleet.planning.sizing import LEAST_CONTEXT, Case
from sparkfleet.planning.speed import CHUNK

GB = 1e9
SMALLER = ("fp8", "nvfp4")
"""Formats to suggest, from the least loss to the most."""
NUMBERS = {2: "two", 3: "three", 4: "four", 8: "eight"}


class Wish(NamedTuple):
    """What was asked for, in the memory model's words."""

    split: Split
    settings: Settings
    context: int
    concurrency: int


def nearest(case: Case, room: Room, largest_split: Split, engine: str = "vllm") -> tuple[str, ...]:
    """The nearest things that would fit nodes with `room`, in words; empty where memory is not the matter.

    Args:
        case: what was asked for.
        room: of the emptiest node.
        largest_split: the widest way to cut the model that the fleet and the deployment allow.
        engine: whose overheads count.
    """
    settings = Settings(engine, "", Speculation(), False, "auto", CHUNK, None)
    wish = Wish(largest_split, settings, case.variant.context or LEAST_CONTEXT, case.variant.concurrency or 1)
    if _fits(case.outlook, wish, room):
        return ()
    return (
        *_fewer(case.outlook, wish, room),
        *_shorter(case.outlook, wish, room),
        *_wider(case.outlook, wish, room),
        *_smaller(case.outlook, wish, room),
    )


def _fits(outlook: Outlook, wish: Wish, room: Room) -> bool:
    needs, _ = outlook.memory(*wish)
    return room.verdict(needs) != "no"


def _fewer(outlook: Outlook, wish: Wish, room: Room) -> Iterator[str]:
    for concurrency in (wish.concurrency // 2, wish.concurrency // 4, 1):
        if 0 < concurrency < wish.concurrency and _fits(
            outlook, wish._replace(concurrency=concurrency), room
        ):
            yield f"fits at concurrency {concurrency}"
            return


def _shorter(outlook: Outlook, wish: Wish, room: Room) -> Iterator[str]:
    low, high = 0, wish.context // 1024
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if _fits(outlook, wish._replace(context=middle * 1024), room)
            else (low, middle - 1)
        )
    if low * 1024 >= LEAST_CONTEXT:
        yield f"fits at context {low * 1024}"


def _wider(outlook: Outlook, wish: Wish, room: Room) -> Iterator[str]:
    for ranks in GROUP_SIZES:
        if ranks > wish.split.ranks:
            split = Split(ranks) if outlook.divides(ranks) else Split(1, ranks)
            if _fits(outlook, wish._replace(split=split), room):
                yield f"fits on {NUMBERS[ranks]} linked nodes"
                return


def _smaller(outlook: Outlook, wish: Wish, room: Room) -> Iterator[str]:
    for quant in SMALLER:
        try:
            other = outlook.checkpoint.requantized(quant)
        except FactError:
            continue
        if other.bytes_on_disk < 0.9 * outlook.checkpoint.bytes_on_disk and _fits(Outlook(other), wish, room):
            yield f"fits as {quant.upper()} (about {other.bytes_on_disk / GB:.0f} GB of weights)"
            return
