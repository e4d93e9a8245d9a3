"""Removes logs and files of earlier generations of ranks, except the newest few. A log takes up to 30 MiB."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.files.fleet_paths import FleetPaths

KEPT = 3
"""Generations of each rank whose logs are kept: the running one, the one that it replaced, and one that failed."""
_SLUG = re.compile(r"(?P<of>.+)_g(?P<generation>\d+)_(?P<at>\d+_\d+)(?:\.log(?:\.\d+)?)?")


def prune(paths: FleetPaths, keep: Iterable[tuple[str, int, int]] = ()) -> tuple[Path, ...]:
    """Removes the files of older generations of each rank, and returns their names. Other files stay.

    Args:
        paths: the fleet's directories on this node.
        keep: deployment, generation and index of the groups that exist: one keeps its name as long as it runs, however many
            generations come after it.
    """
    own = tuple(_beginning(paths.label, *group) for group in keep)
    removed = []
    for directory in (paths.logs, paths.ranks):
        for path in _old(directory.iterdir() if directory.is_dir() else ()):
            if path.name.startswith(own):
                continue
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def _beginning(fleet: str, deployment: str, generation: int, replica: int) -> str:
    """Beginning of the names of all files of a group's ranks."""
    first = RankId(fleet=fleet, deployment=deployment, generation=generation, replica=replica, rank=0)
    return first.slug.removesuffix("0")


def _old(paths: Iterable[Path]) -> Iterator[Path]:
    ranks: defaultdict[tuple[str, str], defaultdict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        if found := _SLUG.fullmatch(path.name):
            ranks[found["of"], found["at"]][int(found["generation"])].append(path)
    for generations in ranks.values():
        for generation in sorted(generations)[:-KEPT]:
            yield from generations[generation]
