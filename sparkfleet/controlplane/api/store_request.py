"""Request of a verb on the store, apart from those that contain an inventory or a plan: their models take longer to load."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value


class OnNode(Value):
    """A request to one node of a fleet."""

    fleet: str
    """The fleet's name."""
    state_dir: str | None = None
    """Its state directory on the node. None: the default in its user's home."""

    @property
    def paths(self) -> FleetPaths:
        """The fleet's directories on this node."""
        return FleetPaths(Path(self.state_dir)) if self.state_dir else FleetPaths.default(self.fleet)


class StoreRequest(OnNode):
    """Input of `node_cli store` on the head: a verb on the fleet's store."""

    verb: Literal["list", "copy", "restore", "adopt", "begin_anew"]
    name: str = ""
    """The copy to restore, or the fleet's name for `begin_anew`."""
    dry: bool = False
    """Check, and change nothing."""
