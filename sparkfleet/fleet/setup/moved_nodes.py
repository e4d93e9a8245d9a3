"""Recognises nodes of an inventory that are at another address now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sparkfleet.errors import NodeError
from sparkfleet.specs.inventory import Inventory

if TYPE_CHECKING:  # a slow import, for other machines only
    from sparkfleet.remote.ssh.host_keys import HostKey


async def moved_nodes(
    keys: Mapping[tuple[str, int], HostKey], old: Inventory | None, given: Collection[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """Nodes of an inventory that are at another address now: by their host keys, which are no longer at the former one.

    Two machines with one host key, as copies of one disk have, are two nodes.
    """
    from sparkfleet.remote.ssh.host_keys import fingerprint

    if old is None:
        return {}
    addresses = {(node.address, node.port) for node in old.nodes.values()}
    known = [node.host_key for node in old.nodes.values()] + [key.fingerprint for key in keys.values()]
    found: dict[tuple[str, int], str] = {}
    for name, node in old.nodes.items():
        former = (node.address, node.port)
        where = next((one for one, key in keys.items() if key.fingerprint == node.host_key), None)
        if (
            where is None
            or where in addresses
            or former in given
            or node.jump
            or known.count(node.host_key) != 2
        ):
            continue
        try:
            is_there = (await fingerprint(*former)).fingerprint == node.host_key
        except NodeError:
            is_there = False
        if not is_there:
            found[where] = name
    return found
