"""Bytes of bodies that a gateway holds at once: the memory of a Spark belongs to its engines.

A body counts from its first byte until an engine has begun to answer.
"""

from __future__ import annotations

from collections import Counter

from sparkfleet.gateway.errors.request_errors import budget_full, key_budget_full

BUDGET_BYTES = 256 << 20
"""Bytes of all clients: eight bodies of the longest kind, or a thousand long conversations."""
KEY_SHARE = 0.75
"""Share of it for one key: the others always find room."""


class BodyBudget:
    """Counts the bytes that are held."""

    def __init__(self, total: int = BUDGET_BYTES) -> None:
        self.total = total
        self._held: Counter[str] = Counter()
        self._sum = 0

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._sum

    def check(self, key: str, size: int) -> None:
        """Refuses `size` further bytes of a key that do not fit.

        Raises:
            ApiError: 429 if this key holds too many, 503 if all together do.
        """
        if self._held[key] + size > self.total * KEY_SHARE:
            raise key_budget_full()
        if self._sum + size > self.total:
            raise budget_full()

    def add(self, key: str, size: int) -> None:
        """Counts bytes. Raises as `check` does, and then counts nothing."""
        self.check(key, size)
        self._held[key] += size
        self._sum += size

    def release(self, key: str, size: int) -> None:
        """Counts bytes as gone."""
        self._sum -= size
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]


class HeldBody:
    """The bytes of one request. `close` releases them; it may be called twice."""

    __slots__ = ("_budget", "_key", "_size")

    def __init__(self, budget: BodyBudget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._size = 0

    def announce(self, size: int) -> None:
        """Refuses a body of this length that does not fit now, before it is read. Raises as `BodyBudget.check` does."""
        self._budget.check(self._key, size)

    def add(self, size: int) -> None:
        """Counts bytes that have arrived. Raises as `BodyBudget.check` does."""
        self._budget.add(self._key, size)
        self._size += size

    def close(self) -> None:
        """Releases all of them."""
        self._budget.release(self._key, self._size)
        self._size = 0
