"""How long a group waits before it starts again what has just ended: longer each time.

Ray Serve waits for nothing: it replaces what died in its next round, after a tenth of a second (2.60, deployment_state.py:
`_get_upscale_replicas`). The group of a replacement is a new process, so the starts that count are in a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkfleet.nodes.files import write_atomically
from sparkfleet.spec.timeouts import Timeouts

COUNTS_S = 600.0
"""A start that began longer ago no longer counts: what lived that long did not end because of it."""


def pause_s(before: int, timeouts: Timeouts) -> float:
    """How long to wait if the same was done so many times of late, seconds: nothing, then twice as long each time."""
    return min(timeouts.pause_s * 2.0 ** (before - 1), timeouts.longest_pause_s) if before else 0.0


class Backoff:
    """Starts of one rung of one group, counted on the node of rank 0.

    Args:
        path: the file; its directory is made. Where it cannot be written, nothing is waited for.
        timeouts: the pauses.
        clock: Unix seconds, replaceable in tests.
    """

    def __init__(self, path: Path, timeouts: Timeouts, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._timeouts = timeouts
        self._clock = clock

    def begin(self) -> float:
        """Count a start; how long it has to wait before it begins, seconds. The first one begins at once."""
        now = self._clock()
        before = [at for at in self._begun() if now - COUNTS_S < at <= now]
        with suppress(OSError):
            write_atomically(self._path, json.dumps([*before, now]).encode())
        return pause_s(len(before), self._timeouts)

    def forget(self) -> None:
        """It was stopped because somebody wanted that: the next start is the first one."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _begun(self) -> list[float]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return []
        return [at for at in found if isinstance(at, float)] if isinstance(found, list) else []
