"""Errors of staging."""

from __future__ import annotations

from typing import Self

from sparkfleet.errors import NodeError, SparkfleetError


class StagingError(NodeError):
    """Weights or an image could not be brought to a node. Transferred bytes are kept; the next run continues there."""


class HubUnreachable(StagingError):
    """The Hub does not answer this node. Another node may reach it."""


class ModelAbsent(StagingError):
    """The public Hub has no such model (HTTP status 404); or it is private, and of another account than the token."""


class ModelNotShown(StagingError):
    """The public Hub shows no such model without a token of its owner (HTTP status 401): it may be private, or not exist."""


class ModelGated(StagingError):
    """The Hub has this model, and gives it only to accounts that accepted its licence."""


class ModelMiscased(StagingError):
    """The Hub has this model with other upper and lower case letters: caches on nodes distinguish them."""

    @classmethod
    def of(cls, name: str, published: str, at: str) -> Self:
        """The error for a name, with the one that the Hub has; `at`: the Hub's address."""
        return cls(
            f"{name} is {published} at {at}.",
            means="The Hub ignores upper and lower case, and the caches of the nodes do not: its weights would be loaded"
            " and kept a second time.",
            do=f"Write {published}.",
        )


class ConnectionVariableError(SparkfleetError):
    """An environment variable of this machine is wrong, so that no HTTP client can be made: a proxy, a file, an address."""


KINDS: dict[str, type[StagingError]] = {
    kind.__name__: kind for kind in (StagingError, HubUnreachable, ModelAbsent, ModelGated, ModelNotShown)
}
"""By their names in the messages of a node's program."""
