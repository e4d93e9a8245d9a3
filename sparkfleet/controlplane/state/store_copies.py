"""Copies of the store and the result of restoring one: what the head reports of them."""

from __future__ import annotations

from typing import Literal

from sparkfleet.values import Value

Occasion = Literal["change", "hourly", "asked", "other"]
"""Reason for which a copy was made."""


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
