"""Errors of staging."""

from __future__ import annotations

from sparkfleet.errors import NodeError


class StagingError(NodeError):
    """Weights or an image could not be brought to a node. Transferred bytes are kept; the next run continues there."""


class HubUnreachable(StagingError):
    """The Hub does not answer this node. Another node may reach it."""


KINDS: dict[str, type[StagingError]] = {kind.__name__: kind for kind in (StagingError, HubUnreachable)}
"""By their names in the messages of a node's program."""
