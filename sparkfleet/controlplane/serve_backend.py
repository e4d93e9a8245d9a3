"""Protocol of the backend that runs groups. `ray/ray_serve_backend.py` is Ray Serve."""

from __future__ import annotations

from typing import Protocol

from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_launch import GroupLaunch

NAMESPACE = "sparkfleet"
"""Ray's namespace of sparkfleet's actors."""
CONTROLLER = "controller"
GATEWAY_APP = "gateway"


class ServeBackend(Protocol):
    """Backend of groups. Every call returns at once; its outcome appears in `list`."""

    async def list(self) -> tuple[App, ...]:
        """All applications."""
        ...

    async def deploy(self, launch: GroupLaunch) -> None:
        """Creates an application for one group."""
        ...

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """Drains and removes an application; does nothing if it does not exist."""
        ...

    async def renew(self) -> None:
        """Restarts what watches the groups' actors, which go on: the wall clock was set back, by which it looks at them."""
        ...
