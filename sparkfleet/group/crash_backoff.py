"""Counts the starts of a group in a file, and pauses before a group that has just ended starts again.

Ray Serve does not pause: it replaces a dead replica in its next round, after a tenth of a second (2.60,
deployment_state.py: `_get_upscale_replicas`). The replacement is a new process, so the starts that count are in a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkfleet.group.crash_pause import of_late, pause_s
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.specs.timeouts import Timeouts


class Backoff:
    """Starts of one rung of one group, counted on the node of rank 0.

    Args:
        path: the file; its directory is created. If it cannot be written, there is no pause.
        timeouts: the pauses.
        clock: Unix seconds, replaceable in tests.
    """

    def __init__(self, path: Path, timeouts: Timeouts, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._timeouts = timeouts
        self._clock = clock

    def begin(self) -> float:
        """Counts a start and returns the pause before it, seconds; 0 for the first one."""
        now = self._clock()
        before = of_late(self._begun(), now)
        with suppress(OSError):
            write_atomically(self._path, json.dumps([*before, now]).encode())
        return pause_s(len(before), self._timeouts)

    def forget(self) -> None:
        """Clears the count after an intended stop: the next start is the first one."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _begun(self) -> list[float]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return []
        return [at for at in found if isinstance(at, float)] if isinstance(found, list) else []
