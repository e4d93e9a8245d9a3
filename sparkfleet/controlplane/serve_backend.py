"""The applications that hold groups: a small protocol. `serve_apps` is Ray Serve behind it, `fake_apps` a fake."""

from __future__ import annotations

from typing import Protocol

from sparkfleet.controlplane.state.status import App
from sparkfleet.group.launch_plan import GroupLaunch

NAMESPACE = "sparkfleet"
"""Of our actors in Ray."""
CONTROLLER = "controller"
GATEWAY_APP = "gateway"


class ServeBackend(Protocol):
    """Backend of groups. Every call returns at once; its outcome appears in `list`."""

    async def list(self) -> tuple[App, ...]:
        """The applications there are."""
        ...

    async def deploy(self, order: GroupLaunch) -> None:
        """Make an application for one group."""
        ...

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """Drain and remove an application. One that is not there is fine."""
        ...
