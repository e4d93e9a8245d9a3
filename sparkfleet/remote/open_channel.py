"""Makes channels to the nodes of an inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkfleet.remote.channel import Channel
from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.inventory import Inventory, Node

if TYPE_CHECKING:  # slow imports, which a fleet on this machine alone does without
    from sparkfleet.remote.ssh.config import SshConfig


def open_channel(name: str, node: Node, config: SshConfig | None = None) -> Channel:
    """A channel to a node. Nothing is connected before its first use.

    Args:
        config: the user's SSH configuration; by default it is read from `~/.ssh`.

    Raises:
        NodeError: the SSH configuration has an option that is not supported, or is invalid.
    """
    if node.is_local:
        return LocalChannel(name)
    from sparkfleet.remote.ssh.channel import SshChannel
    from sparkfleet.remote.ssh.config import SshConfig

    return SshChannel(name, (config or SshConfig()).route(name, node))


def open_channels(inventory: Inventory) -> dict[str, Channel]:
    """A channel to every node of the inventory, by name. Close each. Raises NodeError as `open_channel` does."""
    if all(node.is_local for node in inventory.nodes.values()):
        return {name: LocalChannel(name) for name in inventory.nodes}
    from sparkfleet.remote.ssh.config import SshConfig

    config = SshConfig()
    return {name: open_channel(name, node, config) for name, node in inventory.nodes.items()}
