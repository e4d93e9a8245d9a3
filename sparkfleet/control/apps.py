"""The applications that hold groups: a small protocol. `serve_apps` is Ray Serve behind it, `fake_apps` a fake."""

from __future__ import annotations

from typing import Protocol

from sparkfleet.control.order import GroupOrder
from sparkfleet.control.status import App

NAMESPACE = "sparkfleet"
"""Of our actors in Ray."""
CONTROLLER = "controller"
GROUP_DEPLOYMENT = "group"
GATEWAY_APP = "gateway"


class Apps(Protocol):
    """Where groups run. Every call returns at once; what became of it shows in `list`."""

    async def list(self) -> tuple[App, ...]:
        """The applications there are."""
        ...

    async def deploy(self, order: GroupOrder) -> None:
        """Make an application for one group."""
        ...

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """Drain and remove an application. One that is not there is fine."""
        ...
