"""Whether an engine still moves tokens. Pure: `/health` says 200 for minutes after a peer of a group has died."""

from __future__ import annotations

STUCK_S = 20.0
"""Without a token for this long, with requests running, an engine is asked for one: long enough for a long prefill's chunk,
short enough for somebody who waits."""


class Liveness:
    """Watches two of an engine's metrics over time.

    Args:
        stuck_s: how long no token may move while requests run.
    """

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self._tokens = -1.0
        self._moved_at: float | None = None

    def is_suspect(self, now: float, running: float, tokens: float | None) -> bool:
        """Take a reading; True where a request for one token has to show whether the engine lives.

        Args:
            now: seconds of any clock that only goes forward.
            running: requests that are being decoded.
            tokens: tokens generated since the engine started; None where its metrics did not answer.
        """
        idle = tokens is not None and running == 0
        moved = tokens is not None and tokens != self._tokens
        if self._moved_at is None or idle or moved:
            self._moved_at = now
        if tokens is not None:
            self._tokens = tokens
        return now - self._moved_at >= self._stuck_s

    def proved(self, now: float) -> None:
        """It has generated a token when it was asked for one."""
        self._moved_at = now
