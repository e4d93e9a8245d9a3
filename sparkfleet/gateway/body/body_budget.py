"""Bytes of bodies that a gateway holds at once: the memory of a Spark belongs to its engines.

A body counts from its first byte until an engine has begun to answer. Those of requests that wait for a start on demand are
held for minutes: they have a share of their own, so that the others always find room.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from sparkfleet.gateway.errors.request_errors import budget_full, key_budget_full, waiting_budget_full

BUDGET_BYTES = 256 << 20
"""Bytes of all clients: eight bodies of the longest kind, or a thousand long conversations."""
KEY_SHARE = 0.75
"""Share of it for one key: the others always find room."""
WAITING_SHARE = 0.5
"""Share of both for requests that wait for a start on demand."""


class BodyBudget:
    """Counts the bytes that are held."""

    def __init__(self, total: int = BUDGET_BYTES) -> None:
        self.total = total
        self._held: defaultdict[str, int] = defaultdict(int)  # a Counter is slower to end
        self._sum = 0
        self._waiting: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._sum

    def check(self, key: str, size: int) -> None:
        """Refuses `size` further bytes of a key that do not fit.

        Raises:
            ApiError: 429 if this key holds too many, 503 if all together do.
        """
        if self._held.get(key, 0) + size > self.total * KEY_SHARE:
            raise key_budget_full()
        if self._sum + size > self.total:
            raise budget_full()

    def add(self, key: str, size: int) -> None:
        """Counts bytes. Raises as `check` does, and then counts nothing."""
        self.check(key, size)
        self._held[key] += size
        self._sum += size

    def begin_wait(self, key: str, size: int) -> None:
        """Counts bytes that are held as those of a request that waits for a start.

        Raises:
            ApiError: 503, those of this key, or of all, hold too many.
        """
        most = self.total * WAITING_SHARE
        if self._waiting[key] + size > most * KEY_SHARE or self._waiting.total() + size > most:
            raise waiting_budget_full()
        self._waiting[key] += size

    def end_wait(self, key: str, size: int) -> None:
        """Takes that back."""
        self._waiting[key] -= size
        if not self._waiting[key]:
            del self._waiting[key]

    def release(self, key: str, size: int) -> None:
        """Counts bytes as gone."""
        self._sum -= size
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]


class HeldBody:
    """The bytes of one request. `close` releases them; it may be called twice."""

    __slots__ = ("_budget", "_key", "_size", "_waiting")

    def __init__(self, budget: BodyBudget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._size = 0
        self._waiting = 0

    def announce(self, size: int) -> None:
        """Refuses a body of this length that does not fit now, before it is read. Raises as `BodyBudget.check` does."""
        self._budget.check(self._key, size)

    def add(self, size: int) -> None:
        """Counts bytes that have arrived. Raises as `BodyBudget.check` does."""
        self._budget.add(self._key, size)
        self._size += size

    def begin_wait(self) -> None:
        """Counts them as those of a request that waits for a start. Raises as `BodyBudget.begin_wait` does."""
        self._budget.begin_wait(self._key, self._size)
        self._waiting = self._size

    def end_wait(self) -> None:
        """Takes that back. May be called twice."""
        if self._waiting:
            self._budget.end_wait(self._key, self._waiting)
            self._waiting = 0

    def close(self) -> None:
        """Releases all of them."""
        self.end_wait()
        if self._size:
            self._budget.release(self._key, self._size)
            self._size = 0
