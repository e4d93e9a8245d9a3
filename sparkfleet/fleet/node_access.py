"""Access to the nodes of a fleet: a channel to each, and the fleet's state there, read without sparkfleet on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import NodeError
from sparkfleet.fleet.nodes.surroundings import NodeRole
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.runtime.files.state_probe import found, state_root
from sparkfleet.specs.fields import quote
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

if TYPE_CHECKING:  # a slow import, for a controller that answers
    from sparkfleet.controlplane.api.api_calls import Reach


class FoundState(Value):
    """State of a fleet on a node: see `runtime/files/state_probe.py`."""

    root: str = ""
    """Absolute path of the state directory; "" if the node has none."""
    python: str | None = None
    address: HeadAddress | None = None
    api_token: str = Field(default="", repr=False)
    ray: bool = False
    """True if the head's Ray listens."""
    controller: dict[str, Any] = Field(default_factory=dict)
    """Last note of the controller (`controlplane/controller_note.py`); its fields depend on its release."""
    unreadable: tuple[str, ...] = ()
    """Files that exist and cannot be read, each with the reason."""
    missing: tuple[str, ...] = ()
    """Files that do not exist."""
    spoilt: tuple[str, ...] = ()
    """Secrets of the head that no new controller can use, each with the reason."""
    runs: int = 0
    """Number of the fleet's processes on the node; counted only if a file is missing or unreadable."""
    joined: NodeRole | None = None
    """The node's role if it is not a head."""


class NodeAccess:
    """Channels to the nodes of one fleet."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        """Replaced if another of its nodes becomes the head."""
        self._opened: dict[str, Channel] | None = None

    @property
    def channels(self) -> dict[str, Channel]:
        """A channel to every node. It connects on its first use."""
        if self._opened is None:
            self._opened = dict(open_channels(self.inventory))
        return self._opened

    @property
    def reach(self) -> Reach | None:
        """Makes the head's loopback reachable from here; None if this is the head."""
        head = self.inventory.head
        return None if self.inventory.nodes[head].is_local else self.channels[head].forward

    def state_dir(self, node: str) -> str | None:
        """State directory from this process's environment for this machine; None: from the node's environment."""
        return str(state_root(self.inventory.fleet)) if self.inventory.nodes[node].is_local else None

    async def state(self, node: str) -> FoundState:
        """State of the fleet on a node. Raises NodeError if it cannot be reached, ValueError for an unreadable answer."""
        return FoundState.model_validate_json(await self._run_probe(node, found))

    async def root_of(self, node: str) -> str:
        """Absolute path of the fleet's state directory on a node; "" if it has none. Raises NodeError."""
        return (await self.state(node)).root

    async def probe(self, node: str, probe: Callable[[Path], dict[str, object]]) -> dict[str, Any]:
        """Result of a function of `runtime/files/state_probe.py` on a node. Needs no more there than python3.

        Raises:
            NodeError: the node cannot be reached, or its answer is none of ours.
        """
        return json_answer(node, await self._run_probe(node, probe, probe.__name__))

    async def _run_probe(self, node: str, probe: Callable[[Path], dict[str, object]], *words: str) -> str:
        if self.inventory.nodes[node].is_local:
            return json.dumps(await asyncio.to_thread(probe, state_root(self.inventory.fleet)))
        source = (files("sparkfleet.runtime.files") / "state_probe.py").read_text()
        done = await self.channels[node].run(("python3", "-I", "-c", source, self.inventory.fleet, *words))
        if done.exit_code != 0:
            raise NodeError(
                f"{node}: python3 failed with exit code {done.exit_code}: {done.stderr.strip()[-200:]}"
            )
        return done.stdout

    async def close(self) -> None:
        """Close every connection."""
        opened, self._opened = self._opened or {}, None
        await asyncio.gather(*(channel.close() for channel in opened.values()))


def json_answer(node: str, printed: str) -> dict[str, Any]:
    """Answer of a program on a node. Raises NodeError for anything else, such as the words of a login script."""
    try:
        answer = json.loads(printed)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NodeError(
            f"{node}: the answer of the node cannot be read: it begins with {quote(printed.strip()[:60])}.",
            means="A login script or a wrapper of python3 there prints to the standard output.",
            do=f"Check that `ssh {node} true` prints nothing.",
        )
    return answer
