"""Published durations of starts on Sparks: `starts.yaml`, checked on load. Predictions are held against them."""

from __future__ import annotations

from typing import Literal

from sparkfleet.knowledge.data_file import DataFile, Date
from sparkfleet.values import Value


class PublishedStart(Value):
    """One published duration."""

    what: str
    engine: str
    ranks: int
    gb: float
    """Checkpoint on the disk, GB (1e9 bytes), all ranks together."""
    loader: Literal["mapped", "read", "direct"]
    part: Literal["weights", "first", "later", "start"]
    """Timed part: the weights alone, a start with empty caches, one with kept caches, or a start of unknown caches."""
    seconds: tuple[float, float]
    """Both ends of what was published."""
    fitted: bool = False
    """True if a number of `hardware.yaml` follows from it: it proves nothing then."""
    source: str
    date: Date


class PublishedStarts(Value):
    """Contents of `starts.yaml`."""

    starts: tuple[PublishedStart, ...]


STARTS = DataFile("published/starts.yaml", PublishedStarts)


def published_starts() -> tuple[PublishedStart, ...]:
    """All published durations."""
    return STARTS.content.starts
