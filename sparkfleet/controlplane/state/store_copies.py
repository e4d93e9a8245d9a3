"""Copies of the store and the result of restoring one: what the head and the other nodes report of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

from sparkfleet.values import Value

Occasion = Literal["change", "hourly", "asked", "other"]
"""Reason for which a copy was made."""

COPY_NAME = re.compile(r"\d{8}T\d{12}Z-[a-z]{1,16}\.db", re.ASCII)
"""File name of a copy that sparkfleet made: the moment (UTC, to the microsecond) and the occasion."""


def named_moment(name: str) -> float | None:
    """The moment in a copy's file name, Unix seconds; None if it has none."""
    try:
        return datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


class StoreCopy(Value):
    """A copy of the store on the head's disk."""

    name: str
    at: float
    """Unix seconds."""
    occasion: Occasion
    bytes: int
    fleet: str = ""
    id: str = ""
    changes: int = 0
    deployments: tuple[str, ...] = ()
    """Each as `name (generation n)`."""
    trouble: str = ""
    """Reason for not using it; "" if it is sound."""


class KeptCopy(Value):
    """The copy of the head's store that another node keeps."""

    name: str
    """Name of the head's own copy with the same content."""
    bytes: int
    since_s: float
    """Seconds for which the node has had it, by its own clock."""

    @property
    def at(self) -> float:
        """The moment at which the head made it, Unix seconds."""
        return named_moment(self.name) or 0.0


class RestoredStore(Value):
    """Result of a restoration."""

    source: str
    """Origin of the content, for people."""
    deployments: tuple[str, ...]
    """Each as `name (generation n)`."""
    keys: int
    set_aside: str = ""
    """Path of the file that was there before; "" if there was none."""
    left_out: tuple[str, ...] = ()
    """Deployments that the newest record has, and that do not run: they were not adopted."""
