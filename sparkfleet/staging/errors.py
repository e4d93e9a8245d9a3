"""Errors of staging."""

from __future__ import annotations

from sparkfleet.errors import NodeError


class StagingError(NodeError):
    """Weights or an image could not be brought to a node. What has arrived stays, and the next run goes on from it."""


class HubUnreachable(StagingError):
    """The Hub does not answer this node. Another node may have a way to it."""


KINDS: dict[str, type[StagingError]] = {kind.__name__: kind for kind in (StagingError, HubUnreachable)}
"""By the name that a node's program says them with."""
