"""Makes channels to the nodes of an inventory."""

from __future__ import annotations

from sparkfleet.remote.channel import Channel
from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.remote.ssh.config import SshConfig
from sparkfleet.specs.inventory import Inventory, Node


def open_channel(name: str, node: Node, config: SshConfig | None = None) -> Channel:
    """A channel to a node. Nothing is connected before its first use.

    Args:
        name: the node's name.
        node: its entry in the inventory.
        config: the user's SSH configuration; by default it is read from `~/.ssh`.

    Raises:
        NodeError: the SSH configuration has an option that is not supported, or is invalid.
    """
    if node.is_local:
        return LocalChannel(name)
    return SshChannel(name, (config or SshConfig()).route(name, node))


def open_channels(inventory: Inventory) -> dict[str, Channel]:
    """A channel to every node of the inventory, by name. Close each. Raises NodeError as `open_channel` does."""
    config = SshConfig() if any(not node.is_local for node in inventory.nodes.values()) else None
    return {name: open_channel(name, node, config) for name, node in inventory.nodes.items()}
