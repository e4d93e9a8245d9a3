"""Refuses an apply whose plan was made from an older generation than the one that is desired now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.errors import ControlError
from sparkfleet.planner.report.diff import compare
from sparkfleet.units import moment_words


class OvertakenError(ControlError):
    """Another generation was stored since the plan of an apply was made."""


SHOWN = 5
"""Newer generations that a refusal names."""


def outdated(
    name: str,
    base: int,
    now: Desired | None,
    history: Sequence[Desired],
    deleted: str,
) -> OvertakenError:
    """Error about a plan that another change has overtaken, with the change, its author and its time.

    Args:
        base: the generation that the plan was made from; 0: there was none.
        now: the desired generation; None if there is none.
        history: kept generations of the deployment, oldest first.
        deleted: the event of its deletion, for people; "" if none is known.
    """
    if now is None:
        return OvertakenError(
            f"{name} was deleted after this plan was made: the plan changes generation {base}.",
            means=f"Nothing was changed. {_sentence(deleted)}".strip(),
            do="If it should be served again, run the same command again: it plans a new start.",
        )
    made_from = f"generation {base}" if base else "no such deployment"
    newer = [one for one in history if base < one.generation <= now.generation] or [now]
    before = next((one for one in reversed(history) if one.generation <= base), None)
    lines = [*_lines(before, newer)]
    return OvertakenError(
        f"{name} was changed after this plan was made: it is at generation {now.generation}, the plan was made from"
        f" {made_from}.",
        means="Nothing was changed. " + " ".join(lines[-SHOWN:]),
        do="Take the change into the file if it should stay, and run the same command again: it plans from the"
        " newest generation.",
    )


def difference(before: Desired, after: Desired) -> tuple[str, ...]:
    """Fields in which two generations differ: `field: before → after`."""
    return compare(after.spec, after.plan, (before.spec, before.plan)).fields


def _lines(before: Desired | None, newer: Iterable[Desired]) -> Iterable[str]:
    for one in newer:
        fields = "; ".join(difference(before, one)) if before is not None else f"model: {one.spec.model}"
        changed = fields or "the same fields, started again"
        yield f"Generation {one.generation} by {one.who}, {moment_words(one.since)}: {changed}."
        before = one


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
