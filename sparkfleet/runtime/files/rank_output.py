"""The pipe through which a rank's processes write to its log. Stdlib only."""

from __future__ import annotations

import asyncio
import os

from sparkfleet.runtime.files.ranklog import RankLog

_CHUNK = 1 << 16


class RankOutput:
    """Copies what is written to the pipe into the log, from a running loop."""

    def __init__(self, log: RankLog) -> None:
        self._log = log
        self._output, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._output, False)
        asyncio.get_running_loop().add_reader(self._output, self._read)

    def drain(self) -> None:
        """Copies what is left in the pipe; it ends, as no process is left that could write."""
        while self._read():
            pass

    def _read(self) -> bool:
        try:
            self._log.write(os.read(self._output, _CHUNK))
        except BlockingIOError:
            return False
        return True
