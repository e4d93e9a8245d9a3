"""Requests that a client has sent before the answer to an earlier one of its connection: few, and short ones."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sparkfleet.gateway.asgi import Scope
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import too_many_sent_ahead
from sparkfleet.gateway.http.http_answers import ClientAnswer

SENT_AHEAD = 16
"""Requests that wait. One of 18 bytes takes 77 times that; RFC 9112, 9.3.2, lets a server close a connection without an
answer to all of them."""
SENT_AHEAD_BYTES = 64 << 10
"""Bytes of them that are held when another part is read, which has up to 256 KiB."""


class WaitingRequest(NamedTuple):
    """A request whose turn has not come."""

    answer: ClientAnswer
    scope: Scope
    head_bytes: int


class SentAhead(deque[WaitingRequest]):
    """Waiting requests of one connection, in their order."""

    @property
    def is_full(self) -> bool:
        """True if no other one may wait."""
        return len(self) >= SENT_AHEAD

    @property
    def is_too_long(self) -> bool:
        """True if nothing more of them may be read."""
        return sum([one.head_bytes + len(one.answer.body) for one in self]) > SENT_AHEAD_BYTES

    @staticmethod
    def refusal() -> ApiError:
        """The answer to what is too much."""
        return too_many_sent_ahead(SENT_AHEAD, SENT_AHEAD_BYTES)
