"""`parallel` of a deployment: number of ranks that split its weights, its experts and its KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from sparkfleet.specs.fields import Problem, Spec

Degree = Annotated[int, Field(ge=1, le=1024)]


class Parallel(Spec):
    """Number of ways in which the weights are split. The planner sets the fields that are left out."""

    tp: Degree | None = None
    """Tensor parallel: every layer is split over this many ranks."""
    pp: Degree | None = None
    """Pipeline parallel: the layers are split over this many stages."""
    ep: Degree | None = None
    """Expert parallel: the experts are split over this many ranks."""
    dcp: Degree | None = None
    """Decode context parallel: each request's KV cache is split by its tokens over this many of the `tp` ranks that would
    keep a copy of it. The planner leaves it off unless it is set."""

    def _problems(self) -> Iterator[Problem]:
        if self.dcp is not None and self.tp is not None and self.tp % self.dcp:
            yield Problem(
                ("dcp",),
                f"{self.dcp} does not divide tp: {self.tp}. Expected {_choices(_divisors(self.tp))}.",
            )


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)


def _choices(numbers: Sequence[int]) -> str:
    """The numbers in words: "1, 2 or 4"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
