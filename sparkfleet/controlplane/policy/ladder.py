"""The step after a failed start: the same rung once more, the next one, or the end of the ladder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.planner.types.plan import GroupPlan, Rung
from sparkfleet.values import Value

TRIES = 2
"""Starts of one rung if the cause may pass by itself; after other causes there is one."""

RETRIES = 3
"""Starts of a group that was given up because memory was not free, once it is, until it is ready."""


TOOK_DOWN = "a node went away while it was starting, and no other one is to go down with it"
"""Reason for leaving out rungs on other nodes: a start that took its node down could do the same there."""


class Step(Value):
    """The answer to a failed start, and its reason in words."""

    verb: Literal["again", "next", "end"]
    standing: Standing
    words: str


def step(
    group: GroupPlan,
    standing: Standing,
    diagnosis: Diagnosis | None,
    drained: Collection[str] = (),
    gone: Collection[str] = (),
) -> Step:
    """The step after a failed start. No rung is taken that needs a drained node.

    Args:
        standing: position of the group when it failed.
        diagnosis: the cause, if it is known.
        drained: nodes on which nothing is to be started.
        gone: nodes that do not come back. A rung that needs one is taken only if no other is left.
    """
    why = str(diagnosis).rstrip(".") if diagnosis else "it did not start"
    tries = standing.tries + 1
    if diagnosis is not None and diagnosis.again and tries < TRIES:
        again = standing.model_copy(update={"tries": tries, "restarts": 0})
        return Step(verb="again", standing=again, words=f"{why}; trying again")
    without_tool = diagnosis.nodes if diagnosis is not None else ()
    is_refused = diagnosis is not None and diagnosis.cause is Cause.MEMORY and not diagnosis.began
    rung = _next_rung(group, standing, {*drained, *without_tool}, gone, waits=not is_refused)
    if rung is None and without_tool:
        # Each rung that is left needs that tool, too. One of them, or the end, would outlast the tool's absence.
        again = standing.model_copy(update={"restarts": 0})
        return Step(verb="again", standing=again, words=f"{why}; trying again: no other rung does without it")
    if rung is None and standing.vacated and not is_refused:
        return _back(group, standing, why)
    if rung is not None:
        between = range(standing.rung + 1, rung)
        skipped = [_left_out(group.ladder[at], drained, without_tool, gone) for at in between]
        vacated = [at for at in between if set(gone) & set(_nodes(group, at))]
        kept = standing.model_copy(update={"vacated": (*standing.vacated, *vacated)})
        return _next(group, kept, rung, why, skipped)
    below = group.ladder[standing.rung + 1 :]
    left_out = _left_out(below[0], drained, gone=gone) if below else ""
    return _end(group, standing, why, left_out, is_refused=is_refused)


def _next(group: GroupPlan, standing: Standing, rung: int, why: str, skipped: Sequence[str]) -> Step:
    """The step to a lower rung. `skipped`: the reason for each of those in between."""
    failed, following = group.rung_at(standing.rung), group.ladder[rung]
    cost = cost_words(failed, following)
    lower = Standing(
        rung=rung,
        falls=standing.falls,
        refused=standing.refused,
        passed=(*passed_by(standing, standing.rung + 1, why), *skipped),
        vacated=standing.vacated,
        bound=standing.bound,
    )
    words = f"{_did_not(failed, why)}; next: {rung_words(following)}{cost and f', {cost}'}"
    return Step(verb="next", standing=lower, words=words)


def _end(group: GroupPlan, standing: Standing, why: str, left_out: str, *, is_refused: bool) -> Step:
    """The end of a ladder. One that was refused its memory starts again when that is free, a few times.

    Its failures while it served count on: one that comes up, fails, and is refused its memory at its restart would
    otherwise go on so without end, because each time that it is ready its refusals count from zero.

    `left_out`: the reason for leaving out the rungs below; "" if there are none.
    """
    rungs = len(group.ladder)
    end = f"none of {rungs} rungs started" if rungs > 1 else "there is no other rung"
    if left_out:
        end = f"the other rungs are left out: {left_out}"
    words = f"{_did_not(group.rung_at(standing.rung), why)}; {end}"
    refused = standing.refused + 1 if is_refused else 0
    if refused:
        retry = "it starts once more when that memory is free"
        words += f"; {retry if refused <= RETRIES else '`sparkfleet apply` tries once more'}"
    last = Standing(
        rung=standing.rung,
        tries=standing.tries + 1,
        given_up=True,
        falls=standing.falls,
        starved=standing.starved,
        refused=refused,
        passed=passed_by(standing, standing.rung + 1, why),
        vacated=standing.vacated,
        bound=standing.bound,
    )
    return Step(verb="end", standing=last, words=words)


def may_have_lost_its_node(standing: Standing) -> bool:
    """True if a group fell while it served, maybe with a node, which Ray notices a minute later.

    Not of one that starts again after its nodes have refused it their memory since: they were there.
    """
    return bool(standing.falls) and not standing.refused


def _back(group: GroupPlan, standing: Standing, why: str) -> Step:
    """The step after the last rung of a group that has left others for a lost node: it waits for that node."""
    back = standing.vacated[0]
    failed = _did_not(group.rung_at(standing.rung), why)
    words = f"{failed}; it starts as {rung_words(group.ladder[back])} when the nodes of that are back"
    above = Standing(rung=back, falls=standing.falls, passed=standing.passed[:back], bound=failed)
    return Step(verb="next", standing=above, words=words)


def _did_not(rung: Rung, why: str) -> str:
    return f"{rung_words(rung)} did not start ({why})"


def _nodes(group: GroupPlan, at: int) -> tuple[str, ...]:
    return group.ladder[at].candidate.shape.nodes


def _next_rung(
    group: GroupPlan, standing: Standing, without: Collection[str], gone: Collection[str], *, waits: bool
) -> int | None:
    """The first rung below the position without these nodes; one that needs a node which is gone only if no other is left,
    and it `waits`."""
    below = standing.rung + 1
    found = rung_without(group, {*without, *gone}, below, own=bool(standing.bound))
    return rung_without(group, without, below, own=bool(standing.bound)) if found is None and waits else found


def passed_by(standing: Standing, rung: int, why: str) -> tuple[str, ...]:
    """Reasons for each skipped rung above `rung`, for a group that skips several rungs for one reason."""
    missing = standing.rung - len(standing.passed)  # reasons that an earlier release did not store
    return (*standing.passed, *("not known",) * missing, *(why,) * (rung - standing.rung))


def rung_without(
    group: GroupPlan, nodes: Collection[str], standing: int = 0, *, own: bool = False
) -> int | None:
    """The first rung from the position on that needs none of these nodes; None if each needs one.

    The rungs above have failed before. `own`: only those on the nodes of the choice.
    """
    for index, rung in enumerate(group.ladder):
        if own and group.is_elsewhere(rung):
            continue
        if index >= standing and not set(rung.candidate.shape.nodes) & set(nodes):
            return index
    return None


def rung_with_less(group: GroupPlan, standing: int, away: Collection[str] = ()) -> int | None:
    """The first rung below the position with a lower predicted memory; None if there is none.

    Skips rungs on nodes that are away: the current one has served, and those could only wait.
    """
    here = group.rung_at(standing).prediction.memory_bytes_per_rank.mid
    for at, rung in enumerate(group.ladder[standing + 1 :], standing + 1):
        less = rung.prediction.memory_bytes_per_rank.mid < here
        if less and not set(rung.candidate.shape.nodes) & set(away):
            return at
    return None


def _left_out(
    rung: Rung,
    drained: Collection[str],
    without_tool: Collection[str] = (),
    gone: Collection[str] = (),
) -> str:
    """The reason for leaving a rung out: its nodes that are drained or gone, or whose container tool does not work; else its
    other nodes, which a start that took one down is not to take down, too."""
    for nodes, one, several in ((drained, "is drained", "are drained"), (gone, "is gone", "are gone")):
        if names := [node for node in rung.candidate.shape.nodes if node in nodes]:
            return f"{' and '.join(names)} {one if len(names) == 1 else several}"
    if names := [node for node in rung.candidate.shape.nodes if node in without_tool]:
        return f"the container tool of {' and '.join(names)} does not work"
    return TOOK_DOWN


def cost_words(before: Rung, after: Rung) -> str:
    """Cost of serving one rung instead of another, in predicted tokens per second; "" if unknown."""
    was, becomes = before.prediction.decode_tps_per_request, after.prediction.decode_tps_per_request
    if was is None or becomes is None:
        return ""
    return f"predicted {becomes.mid:.1f} instead of {was.mid:.1f} tok/s for one user"


def rung_words(rung: Rung) -> str:
    """Short name of a rung: its nodes, engine and speculation."""
    candidate = rung.candidate
    return f"{'+'.join(candidate.shape.nodes)} · {candidate.engine} · {candidate.speculation}"
