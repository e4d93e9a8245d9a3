"""Counts requests and tokens by key and model, since the start of a gateway replica."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.gateway.engine.usage import Usage
from sparkfleet.gateway.report import KeyUsage


class UsageCounter:
    """Totals of one gateway replica."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], list[int]] = {}
        self.on_count: Callable[[tuple[str, str]], None] = lambda pair: None
        """Called with the key and the model of each request that was counted."""

    def add(self, key: str, model: str, usage: Usage) -> None:
        """Counts a request."""
        total = self._totals.setdefault((key, model), [0, 0, 0, 0])
        total[0] += 1
        total[1] += usage.input is None and usage.output is None
        total[2] += usage.input or 0
        total[3] += usage.output or 0
        self.on_count((key, model))

    def total(self, pair: tuple[str, str]) -> KeyUsage:
        """The total of a key and a model."""
        requests, uncounted, given, made = self._totals.get(pair, (0, 0, 0, 0))
        return KeyUsage(
            key=pair[0], model=pair[1], requests=requests, uncounted=uncounted, input=given, output=made
        )

    def totals(self) -> tuple[KeyUsage, ...]:
        """The total of each key and model."""
        return tuple(map(self.total, self._totals))
