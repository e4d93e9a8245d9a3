"""What every verb needs: the inventory, channels to its nodes, and the controller if one answers."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sparkfleet.control.client import FleetClient, connect
from sparkfleet.control.head import Address
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.requests import ApplyRequest, UpRequest
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.nodes.base import Channel
from sparkfleet.nodes.local import LocalChannel
from sparkfleet.spec.inventory import Inventory, Node
from sparkfleet.spec.load import load_inventory

T = TypeVar("T")

BOOT_S = 180.0

InventoryOption = Annotated[
    Path,
    typer.Option(
        "--inventory", "-i", envvar="SPARKFLEET_INVENTORY", help="The fleet's inventory.", show_default=True
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with a version field, for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

DEFAULT_INVENTORY = Path("inventory.yaml")


class Session:
    """One run of a verb against one fleet.

    Args:
        inventory_path: the inventory file.
    """

    def __init__(self, inventory_path: Path) -> None:
        self.inventory: Inventory = load_inventory(inventory_path)
        self.paths = FleetPaths.default(self.inventory.fleet)

    @cached_property
    def channels(self) -> dict[str, Channel]:
        """A channel to every node. Raises NodeError where a node cannot be reached; a plan on assumed facts needs none."""
        return {name: _channel(name, node) for name, node in self.inventory.nodes.items()}

    @property
    def head(self) -> Channel:
        """The channel to the head node."""
        return self.channels[self.inventory.head]

    async def find_controller(self) -> FleetClient | None:
        """A client of the controller, if one answers now."""
        return await connect(self.paths)

    async def controller(self) -> FleetClient:
        """A client of the controller. Raises ControlError where none answers."""
        client = await self.find_controller()
        if client is None:
            raise ControlError(
                f"Fleet {self.inventory.fleet} is down: no controller answers.",
                means="Nothing is served.",
                do="`sparkfleet up` starts it; `sparkfleet apply FILE` does so too.",
            )
        return client

    async def bring_up(self, apply: ApplyRequest | None, waiting: Callable[[float], None]) -> FleetClient:
        """Start Ray and the controller on the head, and wait until the controller answers.

        Ctrl-C ends the waiting only. `waiting` is told the seconds gone by.
        """
        request = UpRequest(state_dir=str(self.paths.root), inventory=self.inventory, apply=apply)
        done = await self.head.run(
            (sys.executable, "-m", "sparkfleet.control.boot", "up"), stdin=request.model_dump_json().encode()
        )
        if done.exit_code != 0:
            raise NodeError(f"{self.head.node}: could not begin: {done.stderr.strip()}")
        address = await self._booted(done.stdout.strip(), waiting)
        return FleetClient(address, self.paths.api_token.read_text())

    async def _booted(self, result: str, waiting: Callable[[float], None]) -> Address:
        began = asyncio.get_running_loop().time()
        while (gone := asyncio.get_running_loop().time() - began) < BOOT_S:
            waiting(gone)
            try:
                answer = json.loads(await self.head.read(result))
            except NodeError:
                await asyncio.sleep(0.1)
                continue
            if "error" in answer:
                raise ControlError(**answer["error"])
            return Address.model_validate(answer)
        raise ControlError(
            f"The fleet did not come up within {BOOT_S:.0f} s.",
            do=f"See {self.paths.logs} for what it is doing.",
        )


def who() -> str:
    """Who asks, for the record: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a verb's coroutine to its end."""
    return asyncio.run(work)


def _channel(name: str, node: Node) -> Channel:
    if node.is_local:
        return LocalChannel(name)
    raise NodeError(
        f"Node {name} is at {node.address}, and this version reaches only `address: local`.",
        means="Fleets over SSH come with a later version.",
        do="Run sparkfleet on the node itself, with `address: local`."
        " `sparkfleet plan --assume dgx-spark` plans without asking it.",
    )
