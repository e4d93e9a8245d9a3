"""Counts the starts of a group in a file, and pauses before what has just ended is started again (`crash_backoff`).

Ray Serve waits for nothing: it replaces what died in its next round, after a tenth of a second (2.60, deployment_state.py:
`_get_upscale_replicas`). The group of a replacement is a new process, so the starts that count are in a file.
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
        before = of_late(self._begun(), now)
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
