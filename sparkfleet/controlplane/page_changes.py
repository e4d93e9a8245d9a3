"""Carries out what admin keys choose on the gateway's page: the same changes as the command line's, without a planner.

A node has no planner, so nothing is planned here: `start` and `restart` use the plan that the deployment has, and `drain`
moves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.newest_rank import newest_rank
from sparkfleet.controlplane.state.taken_ports import refuse_taken_ports
from sparkfleet.controlplane.views.page_view import planned_nodes
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.gateway.page.fleet_change import LOG_BYTES, ChangeVerb, FleetAnswer, FleetChange, LogRequest
from sparkfleet.group.group_name import required_group
from sparkfleet.runtime.visible_text import visible
from sparkfleet.specs.fields import quote
from sparkfleet.specs.remote_code import code_problems
from sparkfleet.units import duration_words

PAGE_LOAD_S = 600.0
"""Seconds for which `load` on the page counts as a request that waits: a browser whose tab is hidden repeats nothing."""

ReadLog = Callable[[str, str, int], Awaitable[bytes | None]]
"""The last bytes of a file on a node: node, path, limit; None if it cannot be read."""


class ControllerHolder(Protocol):
    """Holder of the controller once its store is open."""

    @property
    def controller(self) -> Controller | None:
        """The present one; None while its store cannot be used."""
        ...


async def answered(
    work: Callable[[Controller], Awaitable[FleetAnswer]], life: ControllerHolder
) -> FleetAnswer:
    """The answer of some work; a refusal is an answer too, because Ray wraps exceptions."""
    try:
        if life.controller is None:
            raise ControlError(
                "The controller waits for its store: nothing was changed.",
                do="`sparkfleet status` has the reason.",
            )
        return await work(life.controller)
    except SparkfleetError as error:
        return FleetAnswer(what=error.what, means=error.means, do=error.do)


async def carry_out(controller: Controller, change: FleetChange) -> FleetAnswer:
    """Carries out a change. Raises ControlError if the controller refused."""
    match change:
        case FleetChange(verb="drain" | "undrain", node=str(node)):
            return FleetAnswer(done=await _drain_node(controller, node, change))
        case FleetChange(verb="drain" | "undrain", group=str(name)):
            return FleetAnswer(done=await _drain_group(controller, name, change))
        case FleetChange(deployment=str(name)) if change.verb in _OF_DEPLOYMENTS:
            return await _OF_DEPLOYMENTS[change.verb](controller, name, change)
        case _:
            raise ControlError(f"`{change.verb}` needs the name of a node, of a group or of a deployment.")


async def _drain_node(controller: Controller, node: str, change: FleetChange) -> str:
    if change.verb == "undrain":
        await controller.commands.undrain(node, change.who)
        return f"{node} may be used again."
    _require_node(controller, node)
    await controller.commands.drain(node, change.who)
    return f"{node} is drained: nothing is started there. What runs there stays."


async def _drain_group(controller: Controller, name: str, change: FleetChange) -> str:
    if change.verb == "undrain":
        await controller.commands.undrain_group(required_group(name), change.who)
        return f"{name} gets requests again."
    await controller.commands.drain_group(required_group(name), change.who)
    return f"{name} is drained: it gets no new requests. What runs on it goes on."


def _require_node(controller: Controller, node: str) -> None:
    """The command line checks the inventory; a controller that has not looked yet knows no node."""
    known = [one.name for one in controller.queries.status().nodes]
    if node not in known:
        raise ControlError(
            f"There is no node {quote(node)}.", do=f"Nodes: {', '.join(known) or 'not known yet'}."
        )


def _desired(controller: Controller, name: str) -> Desired:
    kept = controller.queries.history(name)
    if not kept or name in {one.name for one in controller.queries.stopped()}:
        names = ", ".join(sorted(one.name for one in controller.queries.status().deployments)) or "none"
        raise ControlError(f"There is no deployment {quote(name)}.", do=f"Deployments: {names}.")
    return kept[-1]


def _require_generation(change: FleetChange, now: Desired) -> None:
    if change.generation is not None and change.generation != now.generation:
        raise ControlError(
            f"{now.name} is at generation {now.generation}, the change was confirmed for generation {change.generation}.",
            means=f"{now.who} applied another one meanwhile; nothing was changed.",
        )


async def _stop(controller: Controller, name: str, change: FleetChange) -> FleetAnswer:
    now = _desired(controller, name)
    _require_generation(change, now)
    await controller.commands.remove(name, change.who)
    return FleetAnswer(done=f"{name} stops. Generation {now.generation} is kept, and can be started again.")


async def _start(controller: Controller, name: str, change: FleetChange) -> FleetAnswer:
    last = next((one for one in controller.queries.stopped() if one.name == name), None)
    if last is None:
        raise ControlError(
            f"{quote(name)} is not a deployment that was stopped.",
            do="`sparkfleet history` shows generations; `sparkfleet apply FILE` serves a new deployment.",
        )
    _require_generation(change, last)
    _require_pinned_code(last)
    _require_known_nodes(controller, last)
    ports = controller.gateways.address.endpoint_ports(controller.fleet.nodes.here)
    refuse_taken_ports(last.plan, controller.queries.status(), ports)
    made, _ = await controller.commands.put(last.spec, last.plan, change.who, base=0)
    begun = "is on demand again: its next request starts it," if last.spec.on_demand else "starts"
    return FleetAnswer(
        done=f"{name} {begun} as generation {made.generation}, with the plan of generation {last.generation}."
    )


async def _restart(controller: Controller, name: str, change: FleetChange) -> FleetAnswer:
    now = _desired(controller, name)
    _require_generation(change, now)
    _require_pinned_code(now)
    _require_known_nodes(controller, now)
    made, _ = await controller.commands.put(now.spec, now.plan, change.who, retry=True, base=now.generation)
    return FleetAnswer(done=f"{name} starts again as generation {made.generation}, at the first rung.")


async def _load(controller: Controller, name: str, change: FleetChange) -> FleetAnswer:
    _require_generation(change, _desired(controller, name))
    await controller.commands.load(name, change.who, PAGE_LOAD_S)
    found = controller.queries.status().named(name)
    if found is not None and found.state == "ready":
        return FleetAnswer(done=f"No change: {name} is loaded.")
    limit = duration_words(PAGE_LOAD_S)
    return FleetAnswer(
        done=f"{name} starts once its memory is free. If that takes longer than {limit}, it is given up."
    )


async def _unload(controller: Controller, name: str, change: FleetChange) -> FleetAnswer:
    _require_generation(change, _desired(controller, name))
    found = controller.queries.status().named(name)
    by = found.demand.loaded_by if found is not None and found.demand is not None else ""
    if await controller.commands.unload(name, change.who):
        return FleetAnswer(done=f"{name} ends. Its next request, or one that waits, starts it again.")
    if by:
        return FleetAnswer(done=f"The load by {by} is taken back: {name} starts for a request only.")
    return FleetAnswer(done=f"No change: {name} is not loaded.")


def _require_pinned_code(one: Desired) -> None:
    """An older release accepted code of a checkpoint that is not pinned, and its plans are still stored."""
    for problem in code_problems(one.spec):
        raise ControlError(
            f"{one.name}: {problem.text}", do=f"Change the file of {one.name}, and `sparkfleet apply` it."
        )


def _require_known_nodes(controller: Controller, one: Desired) -> None:
    known = {node.name for node in controller.queries.status().nodes}
    if gone := sorted(planned_nodes(one) - known) if known else []:
        raise ControlError(
            f"The plan of {one.name} needs {', '.join(gone)}, which the fleet does not have.",
            do=f"`sparkfleet apply` with the file of {one.name} plans it for the present nodes.",
        )


async def log_end(controller: Controller, request: LogRequest, read: ReadLog) -> FleetAnswer:
    """The end of a rank's log. Raises ControlError if the deployment or the rank has no log, or its node does not answer."""
    deployment = controller.queries.status().named(request.deployment)
    found = newest_rank(
        deployment.groups if deployment else (), request.deployment, request.replica, request.rank
    )
    text = await read(found.node, found.log_path, LOG_BYTES)
    if text is None:
        raise ControlError(
            f"The log {found.log_path} on {found.node} cannot be read.",
            do=f"`sparkfleet logs {request.deployment}` reads it over SSH.",
        )
    lines = text.decode(errors="replace").replace("\r\n", "\n").splitlines()[-request.lines :]
    return FleetAnswer(done="read", node=found.node, path=found.log_path, log=visible("\n".join(lines)))


_OF_DEPLOYMENTS: Mapping[ChangeVerb, Callable[[Controller, str, FleetChange], Awaitable[FleetAnswer]]] = {
    "stop": _stop,
    "start": _start,
    "restart": _restart,
    "load": _load,
    "unload": _unload,
}
