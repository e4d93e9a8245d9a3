"""Limits of keys: requests and tokens per minute, and requests at once. Counted by each gateway replica.

A window of 60 s is exact: a key with 10 requests per minute has 10 in any minute, and `Retry-After` is when the oldest of
them leaves it. Tokens are known at the end of an answer only; a key is refused while its last minute has as many as its
limit, so that one long answer is paid for by waiting.

A request that waits for a start on demand holds no place among those at once: it uses no engine, for minutes. As many more
of a key may wait so, and once the start has ended they run beside those that have come meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from sparkfleet.gateway.errors.request_errors import limited
from sparkfleet.gateway.routing_table import KeyEntry

WINDOW_S = 60.0
_WEIGHT = 0.2
"""Share of the newest request in the mean duration of a key's requests."""
_LONGEST_RETRY_S = 60


@dataclass(eq=False, slots=True)
class _Charge:
    at: float
    tokens: int


class _Account:
    """One key's last minute."""

    __slots__ = ("requests", "running", "seconds", "spent", "sum", "waiting")

    def __init__(self) -> None:
        self.requests: deque[float] = deque()
        self.spent: deque[_Charge] = deque()
        self.sum = 0
        self.running = 0
        self.waiting = 0
        """Those that wait for a start on demand, which do not count as running."""
        self.seconds = 1.0
        """Mean duration of its requests."""

    def forget(self, before: float) -> None:
        while self.requests and self.requests[0] <= before:
            self.requests.popleft()
        while self.spent and self.spent[0].at <= before:
            self.give_back(self.spent.popleft(), math.inf)

    def spend(self, at: float, tokens: int) -> _Charge:
        self.spent.append(_Charge(at, tokens))
        self.sum += tokens
        return self.spent[-1]

    def give_back(self, charge: _Charge, most: float) -> int:
        """Takes up to so many tokens out of a charge, and returns how many: none of one that has left the window."""
        taken = int(min(charge.tokens, most))
        charge.tokens -= taken
        self.sum -= taken
        return taken

    def below_at(self, limit: int) -> float:
        """Time at which so many tokens have left the window that fewer than `limit` are in it."""
        left = self.sum
        for charge in self.spent:
            left -= charge.tokens
            if left < limit:
                return charge.at + WINDOW_S
        return 0.0


class KeyLimiter:
    """Counts the requests of each key."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def admit(self, key: KeyEntry) -> AdmittedRequest:
        """Counts a request. Raises ApiError (429) with the time at which the limit admits one again."""
        now = self._clock()
        account = self._accounts.setdefault(key.id, _Account())
        account.forget(now - WINDOW_S)
        limits = key.limits
        if limits.concurrent is not None and account.running >= limits.concurrent:
            wait = account.seconds / limits.concurrent
            raise limited(f'The key "{key.name}" has {limits.concurrent} requests at once.', _retry(wait))
        if limits.requests_per_minute is not None and len(account.requests) >= limits.requests_per_minute:
            free = account.requests[-limits.requests_per_minute] + WINDOW_S
            what = f'The key "{key.name}" has {limits.requests_per_minute} requests per minute.'
            raise limited(what, _retry(free - now))
        if limits.tokens_per_minute is not None and account.sum >= limits.tokens_per_minute:
            what = f'The key "{key.name}" has {limits.tokens_per_minute} tokens per minute.'
            raise limited(what, _retry(account.below_at(limits.tokens_per_minute) - now))
        account.running += 1
        if limits.requests_per_minute is not None:
            account.requests.append(now)
        return AdmittedRequest(account, self._clock, key)

    def keep(self, keys: Iterable[str]) -> None:
        """Forgets the other keys, by their ids, if they have no requests: they are revoked."""
        there = frozenset(keys)
        self._accounts = {
            key: account
            for key, account in self._accounts.items()
            if key in there or account.running or account.waiting
        }


class AdmittedRequest:
    """One request of a key, until `close`."""

    __slots__ = (
        "_account",
        "_charges",
        "_clock",
        "_counts",
        "_key",
        "_open",
        "_started",
        "_waits",
        "charged",
    )

    def __init__(self, account: _Account, clock: Callable[[], float], key: KeyEntry) -> None:
        self._account = account
        self._clock = clock
        self._key = key
        self._counts = key.limits.tokens_per_minute is not None
        self._started = clock()
        self._waits = False
        self._charges: list[_Charge] = []
        self.charged = 0
        """Tokens that are counted so far."""
        self._open = True

    def charge(self, tokens: int) -> None:
        """Counts tokens up to a total of `tokens`; fewer than were counted before give the rest back."""
        if not self._counts or tokens == self.charged:
            return
        if tokens > self.charged:
            self._charges.append(self._account.spend(self._clock(), tokens - self.charged))
        surplus = self.charged - tokens
        for charge in reversed(self._charges):
            if surplus > 0:
                surplus -= self._account.give_back(charge, surplus)
        self.charged = tokens

    def begin_wait(self, retry_s: int) -> None:
        """Gives its place among the requests at once to others, while it waits for a start.

        Args:
            retry_s: seconds after which the start may have ended.

        Raises:
            ApiError: 429, as many requests of the key wait for starts as it may have at once.
        """
        most = self._key.limits.concurrent
        if most is not None and self._account.waiting >= most:
            what = f'The key "{self._key.name}" has {most} requests at once, and as many wait for models to start.'
            raise limited(what, retry_s)
        self._account.waiting += 1
        self._account.running -= 1
        self._waits = True

    def end_wait(self) -> None:
        """Takes a place again, also if all are taken. May be called twice."""
        if self._waits:
            self._waits = False
            self._account.waiting -= 1
            self._account.running += 1
            self._started = self._clock()  # a start is no part of what its requests take

    def close(self) -> None:
        """Ends the request. May be called twice."""
        self.end_wait()
        if self._open:
            self._open = False
            self._account.running -= 1
            took = self._clock() - self._started
            self._account.seconds += _WEIGHT * (took - self._account.seconds)


def _retry(seconds: float) -> int:
    return min(_LONGEST_RETRY_S, max(1, math.ceil(seconds)))
