"""Removes what sparkfleet made on the nodes of a fleet that is down, after showing it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, NamedTuple

from sparkfleet.errors import ControlError, NodeError, UnreachableError
from sparkfleet.fleet.session import Session
from sparkfleet.install.uninstall import Removal, removal
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.files.state_probe import state_root

HERE = "this machine"
"""Name of a machine that is no node, but has files about the fleet."""


class Uninstalled(NamedTuple):
    """Files that are, or were, removed, by machine."""

    machines: Mapping[str, Removal]
    left: Mapping[str, NodeError]
    """Nodes that stay as they are, because they do not answer or something on them failed, with the reason."""


async def uninstall(session: Session, verb: Literal["look", "remove"], *, caches: bool) -> Uninstalled:
    """Find (`look`) or remove what sparkfleet made. Changes nothing unless the fleet is down on all nodes that answer.

    A node that does not answer is left: it may never come back.

    Raises:
        ControlError: the fleet is up.
        UnreachableError: the head cannot be reached, so the fleet may be up.
    """
    if verb == "look":
        await _require_down(session)
        names, left = list(session.inventory.nodes), {}
    else:  # all of them, right before the first is changed
        shown = await uninstall(session, "look", caches=caches)
        names, left = [name for name in session.inventory.nodes if name in shown.machines], dict(shown.left)
    found = await asyncio.gather(
        *(_node(session, name, verb, caches) for name in names), return_exceptions=True
    )
    machines = {}
    for name, one in zip(names, found, strict=True):
        if isinstance(one, NodeError):
            left[name] = one
        elif isinstance(one, BaseException):
            raise one
        else:
            machines[name] = one
    _refuse_running(session, machines)
    if not any(node.is_local for node in session.inventory.nodes.values()):
        machines[HERE] = await _here(session, verb)
    return Uninstalled(machines, left)


def left_nodes(left: Mapping[str, NodeError]) -> NodeError:
    """The error about nodes that `uninstall` left."""
    names, is_one = ", ".join(left), len(left) == 1
    return NodeError(
        next(iter(left.values())).what,
        means=f"{names} {'was' if is_one else 'were'} left as {'it is' if is_one else 'they are'}, with the fleet's secrets"
        " on disk; nothing of sparkfleet is left on the other machines but what is named above.",
        do=f"Once {'it answers' if is_one else 'they answer'}, run `sparkfleet uninstall` again with this inventory.",
    )


async def _require_down(session: Session) -> None:
    try:
        client = await session.find_controller()
    except UnreachableError as error:
        error.do += (
            f"\nNothing was removed. If {session.inventory.head} does not come back, remove it from the inventory, with"
            " another node as `head:`; then `sparkfleet uninstall`."
        )
        raise
    if client is not None:
        raise _is_up(session, "its controller answers")


def _refuse_running(session: Session, by_node: Mapping[str, Removal]) -> None:
    for name, one in by_node.items():
        if one.runs:
            raise _is_up(session, f"{name}: {one.runs[0]}")


def _is_up(session: Session, reason: str) -> ControlError:
    return ControlError(
        f"Fleet {session.inventory.fleet} is not down ({reason}). Nothing was removed.",
        means="What serves is not uninstalled.",
        do="`sparkfleet down` stops it; then `sparkfleet uninstall`.",
    )


async def _node(session: Session, name: str, verb: str, caches: bool) -> Removal:
    root = session.access.state_dir(name) or await session.access.root_of(name)
    if not root:
        raise NodeError(f"{name}: its state directory is not known.", do="`sparkfleet doctor` looks closer.")
    return await removal(session.channels[name], verb, root, only_state=False, caches=caches)


async def _here(session: Session, verb: str) -> Removal:
    root = state_root(session.inventory.fleet)
    return await removal(LocalChannel(HERE), verb, str(root), only_state=True, caches=False)
