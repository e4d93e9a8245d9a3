"""One line on a terminal from a verb's first moment to its first output. Imports nothing that is slow to load."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ERASE = "\r\x1b[2K"
DIM = "\x1b[2m{}\x1b[0m"


class LoadingLine:
    """A dim line at the cursor, on standard error. Every output of the command line erases it first.

    It is written only if standard output and standard error are terminals: a pipe or a file never gets it.
    """

    def __init__(self) -> None:
        self._verb = ""
        self._is_shown = False

    @contextmanager
    def during(self, verb: str) -> Iterator[None]:
        """Show that a verb is loaded, until the end of the block."""
        self._verb = verb
        self.show("loading")
        try:
            yield
        finally:
            self.erase()

    def show(self, words: str) -> None:
        """Show, or replace, the line: the verb, and what it does."""
        if not _on_terminal():
            return
        line = f"{self._verb}: {words}" if self._verb else words
        room = max(shutil.get_terminal_size().columns - 1, 1)
        text = "".join(sign if sign.isprintable() else "?" for sign in line)[:room]
        sys.stderr.write(ERASE + DIM.format(text))
        sys.stderr.flush()
        self._is_shown = True

    def erase(self) -> None:
        """Leave an empty line with the cursor at its begin, if the line is shown."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write(ERASE)
            sys.stderr.flush()


def _on_terminal() -> bool:
    streams = (sys.stdout, sys.stderr)
    return os.environ.get("TERM", "") not in ("", "dumb") and all(
        one is not None and one.isatty() for one in streams
    )


loading = LoadingLine()
"""Of this process, which runs one verb."""
