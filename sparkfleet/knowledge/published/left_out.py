"""Families of models of which nothing published counts, to see what a plan chooses for a model that nobody has run.

with families_left_out({"dense-5120x64"}):
    evidence(), factors(), drafting_published()      # as if no rate of these families were published
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("families_left_out", default=frozenset())


def left_out_families() -> frozenset[str]:
    """Families that do not count now; empty but in `families_left_out`."""
    return _LEFT_OUT.get()


@contextmanager
def families_left_out(families: Iterable[str]) -> Iterator[None]:
    """Leave out what is published of these families, by `ModelShape.family`."""
    token = _LEFT_OUT.set(frozenset(families))
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def is_of_family(key: str, families: frozenset[str]) -> bool:
    """True if a key of the factors ("tp+family=2+dense-5120x64") has one of these families."""
    names, _, values = key.partition("=")
    return "family" in names.split("+") and any(f"+{one}+" in f"+{values}+" for one in families)
