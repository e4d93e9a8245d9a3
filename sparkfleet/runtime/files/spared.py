"""Keeps programs that remove old files from /tmp out of a directory. Stdlib only.

systemd-tmpfiles removes what nobody has touched for days: the locks and records of engines that have run for longer. It
leaves a directory alone, with all that is in it, while somebody holds a lock (flock) on the directory itself
(tmpfiles.d(5)).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def spared(directory: Path) -> Iterator[None]:
    """Holds a shared lock on a directory while it is entered. Without one (no directory, no lock) nothing is kept out."""
    descriptor = -1
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass  # it is being cleaned this moment, or was removed: the next holder gets it
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
