"""The way back of an upgrade: every node that can be reached runs the former release again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sparkfleet.controlplane.api.api_models import UpgradeStep
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.fleet.events import FleetStep, OnEvent, StepRunning
from sparkfleet.fleet.session import Session


async def answers_of(
    session: Session, step: UpgradeStep, token: str
) -> dict[str, dict[str, Any] | BaseException]:
    """A step of an upgrade on all nodes concurrently: the answer or the error of each, by node."""
    nodes = tuple(session.inventory.nodes)
    steps = (session.programs.upgrade_step(node, step, token) for node in nodes)
    return dict(zip(nodes, await asyncio.gather(*steps, return_exceptions=True), strict=True))


async def run_former(
    session: Session, token: str, former: str, error: ControlError, on_event: OnEvent
) -> ControlError:
    """Lets every node run the former release again; the error about the upgrade.

    Args:
        session: the fleet.
        token: of the upgrade.
        former: version of the former release.
        error: the reason for which the new release does not run, and its remedy.
        on_event: called with each step.
    """
    on_event(StepRunning(step=FleetStep.STARTING_RAY, detail=f"sparkfleet {former} again"))
    answers = await answers_of(session, "back", token)
    lost = {node: one for node, one in answers.items() if isinstance(one, SparkfleetError)}
    for one in answers.values():
        if isinstance(one, BaseException) and not isinstance(one, SparkfleetError):
            raise one
    begun = {node: one for node, one in answers.items() if not isinstance(one, BaseException)}
    try:
        await session.lifecycle.until_up(_outcome(session, former, begun, lost), on_event)
        client = await session.controller()
    except SparkfleetError as second:
        return _down(f"{error.what} sparkfleet {former} did not start again either: {second.what}")
    started = [node for node, one in begun.items() if "outcome" in one]
    apart = ""
    try:
        # A node without a role of the former release has never run it.
        without = answers.keys() - set(started)
        await session.lifecycle.until_joined(client, on_event, without=without)
    except SparkfleetError as second:
        apart = f" {second.what} {second.means}".rstrip()
    return ControlError(
        error.what,
        means=_means(former, started, lost, apart, begun[session.inventory.head]),
        do=_remedy(former, error.do, lost, apart),
    )


def _outcome(
    session: Session, former: str, begun: Mapping[str, dict[str, Any]], lost: Mapping[str, SparkfleetError]
) -> str:
    """The file with the outcome of the head's start. Raises SparkfleetError if nothing starts there."""
    head = session.inventory.head
    if head in lost:
        raise lost[head]
    if "outcome" not in begun[head]:
        raise ControlError(f"The head {head} has no role of sparkfleet {former}, which it has never run.")
    return str(begun[head]["outcome"])


def _down(what: str) -> ControlError:
    return ControlError(
        what,
        means="The fleet is down; engines that are not adopted within minutes end.",
        do="`sparkfleet up` starts the fleet; logs are in the state directory of the head.",
    )


def _means(
    former: str,
    started: Sequence[str],
    lost: Mapping[str, SparkfleetError],
    apart: str,
    head: Mapping[str, Any],
) -> str:
    """The state of the fleet, in words. `apart`: why a node that was started is missing, "" if none is."""
    where = f" on {', '.join(started)}" if lost else ""
    lines = [f"The fleet runs sparkfleet {former} again{where}; engines went on.{apart}"]
    if lost:
        errors = " ".join(one.what for one in lost.values())
        lines.append(f"It is not known which release {', '.join(lost)} will run: {errors}")
    if aside := head.get("set_aside"):
        lines.append(
            f"sparkfleet {former} cannot read what the new release stored. The store is that from before the upgrade; the"
            f" newer one is {aside} on the head."
        )
        if names := head.get("lost"):
            lines.append(f"What was applied or deleted meanwhile is not in it: {', '.join(names)}.")
    return "\n".join(lines)


def _remedy(former: str, remedy: str, lost: Mapping[str, SparkfleetError], apart: str) -> str:
    if lost:
        again = "it can" if len(lost) == 1 else "they can"
        return (
            f"When {again} be reached, `sparkfleet upgrade` tries again; `sparkfleet up` of sparkfleet {former} lets"
            f" {', '.join(lost)} join that release."
        )
    if apart:
        return f"`sparkfleet up` of sparkfleet {former} starts what is missing. {remedy}".rstrip()
    return remedy or "`sparkfleet bundle` collects what a report needs."
