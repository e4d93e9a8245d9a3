"""Removes logs and files of earlier generations of ranks, and all files of deployments that are gone, except the newest few.

A log takes up to 30 MiB, a cache of compiled kernels some GiB.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.files.fleet_paths import FleetPaths

KEPT = 3
"""Generations of each rank whose logs are kept: the running one, the one that it replaced, and one that failed."""
KEPT_GONE = 20
"""Deployments without a group whose files are kept, those that changed last: one that is only stopped starts again with its
compiled kernels, and somebody may look for the reason of its end."""
_SLUG = re.compile(r"(?P<of>.+)_g(?P<generation>\d+)_(?P<at>\d+_\d+)(?:\.log(?:\.\d+)?)?")


def prune(paths: FleetPaths, keep: Iterable[tuple[str, int, int]] = ()) -> tuple[Path, ...]:
    """Removes the files of older generations of each rank and of deployments that are gone, and returns their names.

    Other files stay. Without any group to keep no deployment counts as gone: the whole fleet may be stopped for a while.

    Args:
        paths: the fleet's directories on this node.
        keep: deployment, generation and index of the groups that exist: one keeps its name as long as it runs, however many
            generations come after it.
    """
    keep = tuple(keep)
    own = tuple(_beginning(paths.label, *group) for group in keep)
    removed = []
    for directory in (paths.logs, paths.ranks):
        for path in _old(directory.iterdir() if directory.is_dir() else ()):
            if path.name.startswith(own):
                continue
            _remove(path)
            removed.append(path)
    present = {f"{paths.label}_{deployment}" for deployment, _, _ in keep}
    return (*removed, *(_prune_gone(paths, present) if present else ()))


def _prune_gone(paths: FleetPaths, present: set[str]) -> Iterator[Path]:
    """Removes the files of deployments that are not present, except those that changed last. Names begin with the label."""
    of: defaultdict[str, list[Path]] = defaultdict(list)
    for path in (*_entries(paths.logs), *_entries(paths.ranks)):
        if found := _SLUG.fullmatch(path.name):
            of[found["of"]].append(path)
    for path in _entries(paths.kernels):
        of[f"{paths.label}_{path.name}"] += [path, *_entries(path)]
    gone = {name: _changed_at(files) for name, files in of.items() if name not in present}
    for name in sorted(gone, key=gone.__getitem__, reverse=True)[KEPT_GONE:]:
        if _changed_at(of[name]) != gone[name]:
            continue  # it is just being started again
        yield from _removed(of[name])


def _entries(directory: Path) -> tuple[Path, ...]:
    """Entries of a directory; none if it is missing, cannot be read, or is none: then nothing of it is removed."""
    try:
        return tuple(directory.iterdir())
    except OSError:
        return ()


def _changed_at(files: Iterable[Path]) -> float:
    """Time of the last change of any of these; infinity if one cannot be looked at, which is no reason to remove it."""
    last = 0.0
    for path in files:
        try:
            last = max(last, path.stat().st_mtime)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:
            return inf
    return last


def _removed(paths: Iterable[Path]) -> Iterator[Path]:
    """Removes paths, and returns those that are gone. Kernels that a container of an earlier release compiled are root's and
    stay, as are those of TensorRT-LLM over several nodes.

    What stays keeps the time of its change: it would count as the newest, and drive out the files of others.
    """
    times: dict[Path, os.stat_result] = {}
    for path in paths:
        with suppress(OSError):
            times[path] = path.lstat()
    for path, before in times.items():
        _remove(path)
        if not os.path.lexists(path):
            yield path
            continue
        with suppress(OSError):
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


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
