"""Behaviour of a fake engine: its pace and its injected faults."""

from __future__ import annotations

from typing import Literal

from sparkfleet.values import Value


class Pace(Value):
    """Pace of the answers. Times in seconds."""

    ttft_s: float = 0.0
    """From the request to the first token."""
    itl_s: float = 0.0
    """Between two tokens."""
    tokens: int = 16
    """Tokens of an answer if the request sets no lower limit."""


class InjectedFault(Value):
    """A fault that is injected from now on."""

    kind: Literal["die", "drop", "hang", "status", "garble"]
    """`die`: the whole engine is gone at once. `drop`: only this connection is. `hang`: no more bytes are sent. `status`: an
    error is answered. `garble`: each token is `!`, as those of a model with NaN logits."""
    after: int = 0
    """Tokens that are still sent; of an answer that is no stream the first half, if it is not 0."""
    status: int = 500
    """For `status`."""
    times: int | None = None
    """Number of requests that it affects; None: all."""
