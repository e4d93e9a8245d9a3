"""What goes wrong when weights and images are brought to their nodes."""

from __future__ import annotations

from sparkfleet.errors import NodeError


class StagingError(NodeError):
    """Weights or an image could not be brought to a node. What has arrived stays, and the next run goes on from it."""


class Unreachable(StagingError):
    """The Hub does not answer this node. Another node may have a way to it."""


KINDS: dict[str, type[StagingError]] = {kind.__name__: kind for kind in (StagingError, Unreachable)}
"""By the name that a node's program says them with."""
