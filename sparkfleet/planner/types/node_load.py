"""Memory of nodes in a plan: placed, kept, and kept on request."""

from __future__ import annotations

from sparkfleet.values import Value


class NodeLoad(Value):
    """Memory placed on a node, bytes."""

    node: str
    total: int
    usable: int
    """Memory for engines: free now (with what is replaced given back) minus the host's reserve."""
    placed: tuple[tuple[str, int], ...] = ()
    """By deployment."""
    on_demand: tuple[tuple[str, int], ...] = ()
    """The same of deployments on demand, which take turns."""
    kept: tuple[tuple[str, int], ...] = ()
    """Memory that is kept for groups that lose a node, by deployment: most that any one node's loss takes."""
    assumed: bool = False
    """The node was not read: these are the numbers of its kind."""

    @property
    def left(self) -> int:
        """Memory still free for engines."""
        return self.usable - sum(size for _, size in (*self.placed, *self.kept))


class StandbyOffer(Value):
    """Memory that `standby: true` would keep for a deployment whose only group waits for its node if that is lost."""

    name: str
    """The deployment."""
    lost: str
    """The node of its group."""
    node: str
    """The node on which memory would be kept."""
    bytes: int
