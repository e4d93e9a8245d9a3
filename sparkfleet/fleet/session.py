"""Session of one program with one fleet: the inventory, access to its nodes, and a client of its controller."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sparkfleet.errors import ControlError
from sparkfleet.fleet.controller_finder import find_controller, require_head, state_of_head
from sparkfleet.fleet.events import OnEvent, UseCaseEvent, ignored
from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.remote.channel import Channel
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import load_inventory

if TYPE_CHECKING:  # slow imports: those of a controller that answers, or of what changes a fleet
    from sparkfleet.controlplane.api.client import FleetClient
    from sparkfleet.fleet.endpoint_access import EndpointAccess
    from sparkfleet.fleet.node_programs import NodePrograms
    from sparkfleet.fleet.node_starts import FleetLifecycle


class Session:
    """One program's connections to one fleet. Use as an asynchronous context manager, or `close` it."""

    def __init__(self, inventory: Path | Inventory, on_event: OnEvent = ignored) -> None:
        self.access = NodeAccess(inventory if isinstance(inventory, Inventory) else load_inventory(inventory))
        self._on_event = on_event
        self.noted: set[str] = set()
        """Notes on nodes that were sent already."""

    def report(self, event: UseCaseEvent) -> None:
        """Send an event to the session's receiver."""
        self._on_event(event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @cached_property
    def programs(self) -> NodePrograms:
        """sparkfleet's program on the nodes."""
        from sparkfleet.fleet.node_programs import NodePrograms

        return NodePrograms(self.access)

    @cached_property
    def lifecycle(self) -> FleetLifecycle:
        """Start and end of the fleet."""
        from sparkfleet.fleet.node_starts import FleetLifecycle

        return FleetLifecycle(self.access, self.programs)

    @cached_property
    def endpoint(self) -> EndpointAccess:
        """Access to the fleet's endpoint from here."""
        from sparkfleet.fleet.endpoint_access import EndpointAccess

        return EndpointAccess(self.access)

    @property
    def inventory(self) -> Inventory:
        """The fleet as its inventory file has it."""
        return self.access.inventory

    @property
    def channels(self) -> dict[str, Channel]:
        """A channel to every node. It connects on its first use."""
        return self.access.channels

    @property
    def head(self) -> Channel:
        """The channel to the head node."""
        return self.channels[self.inventory.head]

    async def find_controller(self) -> FleetClient | None:
        """A client of the controller; None if the fleet is down. Raises as `controller_finder.find_controller`."""
        return await find_controller(self.access, self._on_event)

    async def controller(self) -> FleetClient:
        """A client of the controller. Raises ControlError if none answers."""
        client = await self.find_controller()
        if client is None:
            raise self.is_down()
        return client

    def is_down(self) -> ControlError:
        """The error for a fleet that is down."""
        return ControlError(
            f"Fleet {self.inventory.fleet} is down: no controller answers.",
            means="Nothing is served.",
            do="`sparkfleet up` or `sparkfleet apply FILE` starts it.",
        )

    async def require_head(self) -> None:
        """Raise UnreachableError if the head was never reached."""
        await require_head(self.access)

    async def head_root(self) -> str:
        """Absolute path of the fleet's state directory on its head; "" if it has none. Raises UnreachableError."""
        return (await state_of_head(self.access)).root

    async def close(self) -> None:
        """Close every connection."""
        await self.access.close()
