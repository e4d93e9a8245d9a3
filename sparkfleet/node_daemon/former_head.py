"""Makes a head that was replaced an ordinary node.

A head that was lost, and replaced by `sparkfleet move-head NODE --lost`, comes back with its role, its store and its old
deployments. Before it starts anything, and every few seconds while it runs, it connects to the port of its own Ray on every
other node: a newer head listens there, with a certificate of the fleet that has a higher term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from sparkfleet.controlplane.api.api_models import JoinRequest, Role, UpRequest
from sparkfleet.controlplane.ray.ray_tls import client_context, move_in, term_in
from sparkfleet.controlplane.state.head_address import read_address
from sparkfleet.controlplane.store_safety.moving import read_move, void_moves
from sparkfleet.controlplane.store_safety.restore import set_aside
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.node_daemon.role_guard import replaces, write_role
from sparkfleet.runtime.files.fleet_paths import FleetPaths

log = logging.getLogger(__name__)

CONNECT_S = 2.0
"""Time limit of a connection: a node that is on accepts or refuses it within milliseconds."""


class NewerHead(NamedTuple):
    """A head that has replaced this one."""

    node: str
    ray: str
    """Address of its Ray, `address:port`."""
    term: int
    """Higher than this one's; the same if two commands have replaced one head."""


class _SeenHead(NamedTuple):
    term: int
    move: str
    """Token of the move that started it."""


async def find_newer_head(paths: FleetPaths, request: UpRequest) -> NewerHead | None:
    """The newest head among the other nodes; None if this one is it, or its own head is being moved.

    One of a move that was undone is none: it was not reached, and still waits beside the Ray that it had.

    Args:
        paths: of a node whose role is that of a head.
        request: its role.
    """
    own = read_address(paths)
    if own is None or read_move(paths.root) is not None:
        return None
    try:
        context = client_context(paths)
    except OSError:
        return None  # it has never started Ray
    port = int(own.ray.rpartition(":")[2])
    addresses = {
        name: one.address
        for name, one in node_addresses(request.inventory).items()
        if name != request.inventory.head
    }
    seen = await asyncio.gather(*(_head_at(address, port, context) for address in addresses.values()))
    void, own_name = void_moves(paths.root), request.inventory.head
    found = [
        NewerHead(name, f"{address}:{port}", one.term)
        for (name, address), one in zip(addresses.items(), seen, strict=True)
        if one is not None and one.move not in void and replaces(one.term, name, own.term, own_name)
    ]
    return max(sorted(found), key=lambda one: one.term, default=None)


async def _head_at(address: str, port: int, context: ssl.SSLContext) -> _SeenHead | None:
    """A head of this fleet that listens at an address; None if there is none."""
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, port, ssl=context)
            try:
                shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                term = term_in(shown) if shown else None
                return _SeenHead(term, move_in(shown)) if term is not None else None
            finally:
                writer.close()
    return None


def join_newer_head(paths: FleetPaths, role: Role, newer: NewerHead) -> Role:
    """The role of an ordinary node of a newer head, in place of this head's; it is stored. The secrets stay.

    Args:
        paths: the fleet's directories.
        role: of this head.
        newer: the head that it has found.
    """
    assert role.up is not None
    inventory = role.up.inventory
    log.warning(
        "%s is the head of this fleet since term %d: this node joins it, and its store is set aside",
        newer.node,
        newer.term,
    )
    join = JoinRequest(
        fleet=role.up.fleet,
        state_dir=role.up.state_dir,
        node=inventory.head,
        host=node_addresses(inventory)[inventory.head].address,
        ray=newer.ray,
        head=newer.node,
        term=newer.term,
        ray_token="",  # it has that of the fleet already
        engine_secret="",
    )
    joined = Role(python=role.python, join=join)
    write_role(paths, joined)  # first: a head without its files would look for no newer one
    retire(paths)
    return joined


def retire(paths: FleetPaths, *more: Path) -> None:
    """Sets the store of a head aside that is none any more, and removes its other files: the mark of a move as the last one.

    Args:
        paths: the fleet's directories.
        more: files to be removed, too.
    """
    set_aside(paths)
    marks = (paths.store_mark, paths.run_store_mark)
    for path in (paths.address, paths.run_address, *marks, paths.undone_moves, *more, paths.head_move):
        path.unlink(missing_ok=True)
