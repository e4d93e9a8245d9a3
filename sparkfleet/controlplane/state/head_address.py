"""The address of a fleet's head: Ray, the controller, the dashboard ports."""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from sparkfleet.runtime.fleet_paths import FleetPaths
from sparkfleet.values import Value


class HeadAddress(Value):
    """Addresses of a fleet's head. Chosen once and stored, so that they survive a restart."""

    ray: str
    api: str
    gateway_host: str
    gateway_port: int
    name: str = "127.0.0.1"
    """The head's name for clients if the gateway listens on every interface."""

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients."""
        host = self.name if self.gateway_host == "0.0.0.0" else self.gateway_host  # noqa: S104 (compared, not bound)
        return f"http://{host}:{self.gateway_port}/v1"

    @property
    def is_private(self) -> bool:
        """True if only programs on the head itself reach the gateway."""
        return self.gateway_host.startswith("127.") or self.gateway_host in ("localhost", "::1")


def read_address(paths: FleetPaths) -> HeadAddress | None:
    """The stored address, or its copy in the run directory; None if neither can be read."""
    for path in (paths.address, paths.run_address):
        with contextlib.suppress(OSError, ValidationError):
            return HeadAddress.model_validate_json(path.read_bytes())
    return None
