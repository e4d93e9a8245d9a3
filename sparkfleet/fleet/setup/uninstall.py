"""Removes what sparkfleet made on the nodes of a fleet that is down, after showing it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.session import Session
from sparkfleet.install.uninstall import Removal, removal
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.files.state_probe import state_root

HERE = "this machine"
"""Name of a machine that is no node, but has files about the fleet."""


async def uninstall(
    session: Session, verb: Literal["look", "remove"], *, caches: bool
) -> Mapping[str, Removal]:
    """Find (`look`) or remove what sparkfleet made, by node. Changes nothing unless the fleet is down on all nodes.

    Raises:
        ControlError: the fleet is up.
        NodeError: a node cannot be reached, or something could not be removed.
    """
    if verb == "look":
        await _require_down(session)
    else:  # all of them, right before the first is changed
        _refuse_running(session, await uninstall(session, "look", caches=caches))
    names = list(session.inventory.nodes)
    found = await asyncio.gather(
        *(_node(session, name, verb, caches) for name in names), return_exceptions=True
    )
    failed = [one for one in found if isinstance(one, BaseException)]
    if failed:
        raise failed[0]
    by_node = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, Removal)}
    _refuse_running(session, by_node)
    if not any(node.is_local for node in session.inventory.nodes.values()):
        by_node[HERE] = await _here(session, verb)
    return by_node


async def _require_down(session: Session) -> None:
    if await session.find_controller() is not None:
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
