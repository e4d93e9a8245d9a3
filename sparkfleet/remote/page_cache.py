"""Dropping the page cache before an engine loads: on unified memory the driver does not take back what the kernel caches.

It needs root, so it is one command and nothing else that a user may be allowed, by one line in sudoers.
"""

from __future__ import annotations

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Channel

COMMAND = ("/usr/sbin/sysctl", "-w", "vm.drop_caches=3")
DROP_BY_HAND = f"sync && sudo {' '.join(COMMAND)}"
"""For a person to type; what waits to be written is written first, so that more of it can go."""
FILE = "/etc/sudoers.d/sparkfleet-page-cache"


async def drop(channel: Channel) -> bool:
    """Drop it; False if that is not permitted. Nothing is lost: what is dirty stays until it is written."""
    return await _sudo(channel, *COMMAND)


async def may_drop(channel: Channel) -> bool:
    """True if `drop` would be permitted. Changes nothing."""
    return await _sudo(channel, "--list", *COMMAND)


def sudoers(user: str) -> str:
    """The line that permits it."""
    return f"{user} ALL=(root) NOPASSWD: {' '.join(COMMAND)}"


def how_to_permit(user: str) -> str:
    """Commands to type on a node, once."""
    return f"echo '{sudoers(user)}' | sudo tee {FILE} && sudo chmod 0440 {FILE}"


async def _sudo(channel: Channel, *words: str) -> bool:
    try:
        return (await channel.run(("sudo", "--non-interactive", *words), timeout_s=20)).exit_code == 0
    except NodeError:
        return False  # no sudo, or a node that takes its time: starting without is slower, not wrong
