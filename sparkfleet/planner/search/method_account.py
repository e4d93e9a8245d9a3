"""The account of speculative methods: the result of each on each engine, so that none is dropped without a reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from sparkfleet.planner.place.drafting import METHODS
from sparkfleet.planner.place.stacks import ENGINES
from sparkfleet.planner.types.plan import ENGINE_LABELS, Rejection, Why
from sparkfleet.specs.deployment import EngineName, Method


class Stage(IntEnum):
    """Stage that a method reached; the reason of the furthest one counts."""

    ENGINE = 0
    """The engine is out."""
    EXCLUDED = 1
    """It was not proposed."""
    SIZED = 2
    """It was proposed and has no room."""
    EVALUATED = 3
    """It passed, and the nodes have no room for it."""


class Fate(NamedTuple):
    """Result of a method on an engine, with its reason."""

    stage: Stage
    reason: str
    why: Why


class MethodAccount:
    """Reasons by engine and method.

    Args:
        engines: those that are accounted for, in this order.
    """

    def __init__(self, engines: Sequence[EngineName] = ENGINES) -> None:
        self._engines = engines
        self._fates: dict[tuple[EngineName, Method], Fate] = {}

    def note(self, engine: EngineName, methods: Iterable[Method], fate: Fate) -> None:
        """Keeps a reason, unless one of the same or a later stage is known."""
        for method in methods:
            known = self._fates.get((engine, method))
            if known is None or known.stage < fate.stage:
                self._fates[engine, method] = fate

    def no_room(self, engine: EngineName, method: Method, reason: str) -> None:
        """Notes a proposal that passed its evaluation, and for which its nodes have no room."""
        self.note(engine, (method,), Fate(Stage.EVALUATED, reason, "memory"))

    def unmentioned(
        self, taken: Iterable[tuple[EngineName, Method]], rejected: Iterable[Rejection]
    ) -> Iterator[Rejection]:
        """A line for every engine and method that is neither taken nor rejected by name; those of one reason together.

        Args:
            taken: engines and methods of the ladder.
            rejected: what plans list already.
        """
        accounted = {(one.engine, method) for one in rejected for method in one.methods}
        accounted |= set(taken)
        for engine in self._engines:
            together: dict[tuple[str, Why], list[Method]] = {}
            for method in METHODS:
                if (engine, method) not in accounted:
                    fate = self._fates.get((engine, method), NOT_TRIED)
                    together.setdefault((fate.reason, fate.why), []).append(method)
            for (reason, why), methods in together.items():
                yield rejection_of(engine, methods, reason, why)


NOT_TRIED = Fate(Stage.ENGINE, "not tried: this fleet has no nodes for a shape of this model", "engine")


def rejection_of(engine: EngineName, methods: Iterable[Method], reason: str, why: Why) -> Rejection:
    """One line for methods of an engine that have one reason."""
    listed = tuple(methods)
    every = len(listed) == len(METHODS)
    names = ["no speculation" if method == "none" else method.upper() for method in listed]
    what = ENGINE_LABELS[engine] if every else f"{ENGINE_LABELS[engine]} · {', '.join(names)}"
    return Rejection(what=what, reason=reason, why=why, engine=engine, methods=listed)
