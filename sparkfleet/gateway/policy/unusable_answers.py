"""Groups that answer each request as if they served another model, or no API: their circuits stay closed, as they answer."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sparkfleet.gateway.policy.circuit import OPEN_S

LASTING = 2
"""Unusable answers in a row, from the first to the last of them `OPEN_S`, from which on they are no passing ones."""


@dataclass(slots=True)
class _Streak:
    group: str
    why: str
    do: str
    first: float
    last: float
    count: int = 1


class UnusableAnswers:
    """Counts the unusable answers of each group, by its application, since its last good one."""

    def __init__(self) -> None:
        self._of: dict[str, _Streak] = {}

    def note(self, app: str, group: str, why: str, do: str, now: float) -> None:
        """Counts one.

        Args:
            group: its name.
            why: the answer, in words.
            do: the remedy, a sentence.
            now: seconds of a clock that only goes forward.
        """
        if (streak := self._of.get(app)) is None:
            self._of[app] = _Streak(group, why, do, now, now)
            return
        streak.group, streak.why, streak.do, streak.last = group, why, do, now
        streak.count += 1

    def end(self, app: str) -> None:
        """Records a good answer."""
        self._of.pop(app, None)

    def lasting(self) -> tuple[str, ...]:
        """The groups that have given no other answers for a while, each as a sentence with the reason and the remedy."""
        return tuple(
            f"{one.group} counts as ready, and requests fail there: {one.why}, {one.count} times in a row. {one.do}"
            for one in self._of.values()
            if one.count >= LASTING and one.last - one.first >= OPEN_S
        )

    def keep(self, apps: Collection[str]) -> None:
        """Forgets all other groups."""
        self._of = {app: streak for app, streak in self._of.items() if app in apps}


def names_model(message: str, model: str) -> bool:
    """True if an engine's 404 is about this name of a model, which the gateway has put into the request: no client has."""
    if "model" not in message.lower():
        return False
    return re.search(rf"(?<![\w./-]){re.escape(model)}(?![\w/-])", message) is not None
