"""Logs and files of ranks of earlier generations: the newest few are kept, the rest goes. A log takes up to 30 MiB."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkfleet.runtime.fleet_paths import FleetPaths

KEPT = 3
"""Generations whose logs are kept, of each rank: the one that runs, the one that it replaced, and one that failed."""
_SLUG = re.compile(r"(?P<of>.+)_g(?P<generation>\d+)_(?P<at>\d+_\d+)(?:\.log(?:\.\d+)?)?")


def prune(paths: FleetPaths, kept: int = KEPT) -> tuple[Path, ...]:
    """Remove what older generations of each rank have left; says what. Nothing else in these directories is touched."""
    removed = []
    for directory in (paths.logs, paths.ranks):
        for path in _old(directory.iterdir() if directory.is_dir() else (), kept):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def _old(found: Iterable[Path], kept: int) -> Iterator[Path]:
    ranks: defaultdict[tuple[str, str], defaultdict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in found:
        if told := _SLUG.fullmatch(path.name):
            ranks[told["of"], told["at"]][int(told["generation"])].append(path)
    for generations in ranks.values():
        for generation in sorted(generations)[:-kept]:
            yield from generations[generation]
