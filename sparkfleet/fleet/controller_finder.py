"""Finds the controller of a fleet, or the reason why none answers: down, out of reach, or in trouble."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkfleet import __version__
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import NodeError, UnreachableError, UnreadableStateError, WrongFleetError
from sparkfleet.fleet.events import OnEvent, TroubleFound
from sparkfleet.fleet.node_access import FoundState, NodeAccess
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, require_free
from sparkfleet.specs.inventory import Inventory

if TYPE_CHECKING:  # a slow import, for a head that has an address
    from sparkfleet.controlplane.api.client import FleetClient

QUICK_S = 3.0
"""Seconds to wait for a controller whose own note has the reason why it does not answer."""


class NoControllerError(UnreadableStateError):
    """Ray runs on the head, and no controller answers."""


async def find_controller(access: NodeAccess, on_event: OnEvent) -> FleetClient | None:
    """A client of the controller; None if the fleet is down. Waits for one if the head's Ray runs.

    A controller that is in trouble, or of another version of sparkfleet, is an event `TroubleFound`.

    Raises:
        UnreachableError: the head cannot be reached.
        UnreadableStateError: the fleet's state cannot be read, or its controller does not answer although Ray runs.
        WrongFleetError: another fleet's controller answers, or the node has joined another head.
    """
    inventory, there = access.inventory, await state_of_head(access)
    if there.address is None:
        _require_down(inventory, there)
        return None
    client = await _answering(access, there, there.address)
    if client is None and there.ray:
        raise no_controller(inventory.head, there.controller, there.spoilt)
    if client is None:
        return None
    if client.fleet_name not in ("", inventory.fleet):
        raise WrongFleetError(
            f"The controller at {there.address.api} on {inventory.head} is that of fleet {client.fleet_name},"
            f" not of {inventory.fleet}.",
            do="Check `fleet:` and `head:` in inventory.yaml.",
        )
    for line in _troubles(client):
        on_event(TroubleFound(line=line))
    return client


async def state_of_head(access: NodeAccess) -> FoundState:
    """State of the fleet on its head. Raises UnreachableError and UnreadableStateError."""
    head, fleet = access.inventory.head, access.inventory.fleet
    try:
        return await access.state(head)
    except NodeError as error:
        raise head_unreachable(access.inventory, error) from error
    except ValueError as error:
        raise UnreadableStateError(
            f"The state of fleet {fleet} on {head} cannot be read: {error}",
            means="It is not known if the fleet is up. What runs goes on.",
            do=f"Look at the files in the state directory on {head}; docs/runbook.md describes them.",
        ) from error


async def require_head(access: NodeAccess) -> None:
    """Raise UnreachableError if the head was never reached: the reason of every failure on the nodes that follows."""
    channel = access.channels[access.inventory.head]
    if channel.unreached is None:  # an attempt may not have ended yet
        with contextlib.suppress(NodeError):
            await channel.run(("true",))
    if channel.unreached is not None:
        raise head_unreachable(access.inventory, channel.unreached)


def head_unreachable(inventory: Inventory, error: NodeError) -> UnreachableError:
    """The error about a head that cannot be reached, with the reason of its channel."""
    head = inventory.head
    other = next((name for name in inventory.nodes if name != head), "")
    if_lost = f" If it is lost: `sparkfleet move-head {other} --lost`." if other else ""
    do = error.do or f"Check that {head} is on and that `ssh` to it works; `sparkfleet doctor` looks closer."
    return UnreachableError(
        f"{head}, the head of fleet {inventory.fleet}, cannot be reached: {error.what}",
        means="It is not known if the fleet is up. What runs goes on.",
        do=f"{do}{if_lost}",
    )


def _require_down(inventory: Inventory, there: FoundState) -> None:
    """Raises an error if the fleet may run although this node has no address of a head.

    A node that has joined another head has none; if that head is gone, this node's own fleet is down.
    """
    if there.joined is not None:
        require_free(inventory, {inventory.head: NodeSurroundings(role=there.joined)})
        return
    reasons = list(there.unreadable)
    if there.runs:
        reasons += [f"{path} is missing" for path in there.missing]
    if reasons:
        count = f"{there.runs} processes of the fleet run there. " if there.runs else ""
        raise UnreadableStateError(
            f"The state of fleet {inventory.fleet} on {inventory.head} cannot be read: {'; '.join(reasons)}.",
            means=f"{count}It is not known if the fleet is up: nothing was changed.",
            do="If it was run with `sudo` by mistake and nothing of it runs:"
            f" `sudo chown -R $USER {shlex.quote(there.root)}`. Else run sparkfleet as that user."
            if any(" belongs to " in reason for reason in reasons)
            else "Repair or put back that file; docs/runbook.md has the cases.",
        )


async def _answering(access: NodeAccess, there: FoundState, address: HeadAddress) -> FleetClient | None:
    from sparkfleet.controlplane.api.api_calls import PATIENCE_S
    from sparkfleet.controlplane.api.client import answering

    # It has written down that nobody reaches it, or it cannot start.
    quick = bool(there.controller.get("api") or there.spoilt)
    patience_s = (QUICK_S if quick else PATIENCE_S) if there.ray else 0.0
    try:
        return await answering(address, there.api_token, access.reach, patience_s)
    except WrongFleetError as error:
        raise WrongFleetError(
            f"The controller at {address.api} on {access.inventory.head} refuses this fleet's token.",
            means="It is another fleet's, or the file api.token was replaced after it started.",
            do="`sparkfleet doctor` shows the processes on the node; docs/runbook.md has the case.",
        ) from error


def no_controller(head: str, note: Mapping[str, Any], spoilt: Sequence[str]) -> NoControllerError:
    """Error about a head whose Ray runs without a controller that answers, with the controller's own reason.

    Args:
        note: the controller's last one.
        spoilt: files that a new controller cannot use, each with the reason.
    """
    api = str(note.get("api") or "") or "; ".join(spoilt)
    reason = api or str(note.get("what") or "")
    return NoControllerError(
        f"Ray runs on {head}, but the controller does not answer.{f' {reason}' if reason else ''}",
        means="Running engines go on, and the gateways keep their last table; the desired state is on the head's disk.",
        do="Free that address, or put that file back (a secret is the same on every node): the controller continues."
        if api
        else "`sparkfleet up` makes a controller, and touches neither Ray nor the engines.",
    )


def _troubles(client: FleetClient) -> Iterator[str]:
    from sparkfleet.controlplane.api.client_errors import not_working, unlike

    if words := not_working(client.trouble):
        yield words
    if client.version not in ("", __version__):
        yield " ".join(str(unlike(client.version)).splitlines())
