"""Removes logs and files of earlier generations of ranks, except the newest few. A log takes up to 30 MiB."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkfleet.runtime.files.fleet_paths import FleetPaths

KEPT = 3
"""Generations of each rank whose logs are kept: the running one, the one that it replaced, and one that failed."""
_SLUG = re.compile(r"(?P<of>.+)_g(?P<generation>\d+)_(?P<at>\d+_\d+)(?:\.log(?:\.\d+)?)?")


def prune(paths: FleetPaths, kept: int = KEPT) -> tuple[Path, ...]:
    """Removes the files of older generations of each rank, and returns their names. Other files stay."""
    removed = []
    for directory in (paths.logs, paths.ranks):
        for path in _old(directory.iterdir() if directory.is_dir() else (), kept):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def _old(paths: Iterable[Path], kept: int) -> Iterator[Path]:
    ranks: defaultdict[tuple[str, str], defaultdict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        if found := _SLUG.fullmatch(path.name):
            ranks[found["of"], found["at"]][int(found["generation"])].append(path)
    for generations in ranks.values():
        for generation in sorted(generations)[:-kept]:
            yield from generations[generation]
