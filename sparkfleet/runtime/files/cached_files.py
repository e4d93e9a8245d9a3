"""Gives back the memory in which the kernel keeps files that were read, or written: what a user may do without root.

On unified memory an engine cannot use it: the driver does not reclaim the page cache, and CUDA counts it as used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LEAST_BYTES = 1 << 20
"""Smaller files are left: a shard has gigabytes."""


def give_back(*directories: Path) -> int:
    """Give back the pages of every large file below the directories. Pages that a process has mapped stay.

    Files that vanish meanwhile, or may not be read, are left out. Pages that are not on the disk yet are written first,
    which takes as long as the disk needs.

    Returns:
        Number of files whose pages were given back.
    """
    return sum(_give_back(path) for directory in directories for path in _large(directory))


def _large(directory: Path) -> Iterator[str]:
    """Paths of large regular files; links are not followed, as the Hub's cache links to its own blobs."""
    pending = [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and entry.stat().st_size >= LEAST_BYTES:
                        yield entry.path
        except OSError:
            continue


def _give_back(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
