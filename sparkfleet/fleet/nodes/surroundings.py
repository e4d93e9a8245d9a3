"""Parts that the nodes of an inventory already have in a fleet: refuses a second head, and names other fleets on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal

from sparkfleet.errors import NodeError, WrongFleetError
from sparkfleet.remote.channel import Channel
from sparkfleet.runtime.files.state_probe import state_root, surroundings
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

SHOWING_S = 5.0
"""Patience of verbs that only show the surroundings."""


class NodeRole(Value):
    """A node's part in a fleet, as its state directory has it."""

    verb: Literal["up", "join"]
    """`up`: it is the head."""
    node: str
    head: str
    """The head's name; "" if an older release stored the role."""
    ray: str
    """Address of the head's Ray."""
    term: int = 0
    """The head's: see `HeadAddress.term`."""
    live: bool
    """True if that Ray listens, as seen from this node, or if this node is the head and its watchdog runs."""


class OtherFleet(Value):
    """A fleet of another name, or of another state directory, that lives on a node."""

    fleet: str
    root: str
    """Its state directory there."""
    role: NodeRole | None = None
    """None if it is another user's and cannot be read."""


class NodeSurroundings(Value):
    """Everything on a node that concerns a fleet before it is changed; see `runtime/files/state_probe.py`."""

    root: str = ""
    """The fleet's state directory there."""
    id: str = ""
    """Name of the fleet by its nodes' shared secret, which moves with its head; "" if the node has none."""
    role: NodeRole | None = None
    store: bool = False
    """True if the node has a store: it is or was a head."""
    generations: dict[str, int] | None = None
    """Desired generation of each deployment in the store; None if the store cannot be read."""
    others: tuple[OtherFleet, ...] = ()


async def surroundings_of(
    inventory: Inventory, channels: Mapping[str, Channel], patience_s: float | None = None
) -> dict[str, NodeSurroundings]:
    """The surroundings on every node that can be reached, in one round trip each.

    Args:
        channels: to its nodes, or to some of them.
        patience_s: time after which a node counts as not reached; None: that of its channel.
    """
    reading = (read_surroundings(inventory, name, channels) for name in channels)
    answers = await asyncio.gather(
        *(asyncio.wait_for(one, patience_s) for one in reading), return_exceptions=True
    )
    found = {}
    for name, answer in zip(channels, answers, strict=True):
        if isinstance(answer, NodeSurroundings):
            found[name] = answer
        elif not isinstance(answer, NodeError | TimeoutError):
            raise answer
    return found


async def read_surroundings(
    inventory: Inventory, node: str, channels: Mapping[str, Channel]
) -> NodeSurroundings:
    """The surroundings on one node. Raises NodeError if it cannot be reached or its answer is none of ours."""
    if inventory.nodes[node].is_local:
        printed = await asyncio.to_thread(surroundings, state_root(inventory.fleet))
        return NodeSurroundings.model_validate_json(json.dumps(printed))
    source = (files("sparkfleet.runtime.files") / "state_probe.py").read_text()
    done = await channels[node].run(("python3", "-I", "-c", source, inventory.fleet, "surroundings"))
    if done.exit_code != 0:
        raise NodeError(
            f"{node}: python3 failed with exit code {done.exit_code}: {done.stderr.strip()[-200:]}"
        )
    try:
        return NodeSurroundings.model_validate_json(done.stdout)
    except ValueError as error:
        raise NodeError(f"{node}: the state of the node cannot be read: {error}") from error


def require_free(
    inventory: Inventory, around: Mapping[str, NodeSurroundings], verb: Literal["starts", "stops"] = "starts"
) -> None:
    """Raise WrongFleetError if a node of the inventory belongs to another head than the inventory's.

    Args:
        inventory: names the head.
        around: surroundings of the nodes that were reached.
        verb: `stops` ignores what is not running.
    """
    for name in inventory.nodes:
        if name in around and (belongs := _belongs(inventory, name, around, verb)):
            raise WrongFleetError(
                belongs,
                means=f"Nothing was changed: {inventory.head}, the head in this inventory, would end what serves there."
                if verb == "stops" or around[name].role
                else "Nothing was changed: deployments and keys would be missing on the new head.",
                do=_remedy(inventory, _head_of(name, around[name])),
            )


def _belongs(inventory: Inventory, name: str, around: Mapping[str, NodeSurroundings], verb: str) -> str:
    """The fact that a node belongs to another head; "" if it does not."""
    here, own = around[name], around.get(inventory.head, NodeSurroundings())
    role, is_head = here.role, name == inventory.head
    if role is None:
        if here.store and not is_head and not own.store and verb == "starts":
            return f"{name} has the state of fleet {inventory.fleet}: it was its head, and {inventory.head} has none."
        return ""
    runs = "which is running" if role.live else "which is not running now"
    if role.verb == "up":
        if is_head or (verb == "stops" and not role.live) or is_replaced(here, own):
            return ""
        return f"{name} is the head of fleet {inventory.fleet}, {runs}."
    same_id = own.id == here.id or (own.id == "" and role.head != "")
    same = not is_head and same_id and role.head in ("", inventory.head)
    if not role.live or same:
        return ""
    return f"{name} belongs to fleet {inventory.fleet} of head {role.head or role.ray}, {runs}."


def is_replaced(here: NodeSurroundings, head: NodeSurroundings) -> bool:
    """True if a node was the head of the fleet, and `head` has replaced it since: it becomes an ordinary node."""
    if here.role is None or head.role is None or (here.role.verb, head.role.verb) != ("up", "up"):
        return False
    return here.id == head.id and head.role.term > here.role.term


def _head_of(name: str, here: NodeSurroundings) -> str:
    return here.role.head if here.role is not None and here.role.verb == "join" else name


def _remedy(inventory: Inventory, head: str) -> str:
    if not head:
        return "Use the inventory of that fleet, or give this fleet another name in `fleet:`."
    return (
        f"Set `head: {head}` in the inventory. `sparkfleet move-head {inventory.head}` then moves the head, with"
        " deployments, keys and secrets. A fleet of its own needs another name in `fleet:`."
    )


def other_fleets(around: Mapping[str, NodeSurroundings]) -> dict[str, tuple[OtherFleet, ...]]:
    """Other fleets on each node that has any."""
    return {name: here.others for name, here in around.items() if here.others}


def other_fleet_lines(around: Mapping[str, NodeSurroundings]) -> tuple[str, ...]:
    """A line for each other fleet, with its nodes, for people."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, others in other_fleets(around).items():
        for other in others:
            nodes.setdefault((_title(other), _fields(other)), []).append(name)
    return tuple(
        f"{title} also runs on {', '.join(dict.fromkeys(names))}: both use the same memory and ports there."
        f" `sparkfleet down` with its inventory{fields} stops it."
        for (title, fields), names in nodes.items()
    )


def _title(other: OtherFleet) -> str:
    if other.role is None:
        return f"Fleet {other.fleet} (state in {other.root})"
    return f"Fleet {other.fleet} (head {other.role.head or other.role.ray})"


def _fields(other: OtherFleet) -> str:
    """The fields of its inventory in words, for an owner who has lost that; "" if it is another user's."""
    if other.role is None or not other.role.head:
        return ""
    return f" (`fleet: {other.fleet}`, `head: {other.role.head}`)"
