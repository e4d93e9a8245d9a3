"""Disks: free space of the directories that sparkfleet uses, and the models in the Hub's cache."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.hostfacts.container import CONTAINERD_DRIVER, CONTAINERD_STORE
from sparkfleet.hostfacts.fact import Fact, json_of, text, unexpected_output, whole
from sparkfleet.values import Value

_PROBE = r"""
import json, os, time
home = os.path.expanduser('~')
cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(home, '.cache')
hub = os.path.expandvars(os.path.expanduser(os.environ.get('HF_HUB_CACHE') or os.path.join(
    os.environ.get('HF_HOME') or os.path.join(cache, 'huggingface'), 'hub')))
def space(path):
    while path and not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        s = os.statvfs(path)
        return [s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize, os.stat(path).st_dev]
    except OSError:
        return None
until = time.monotonic() + 3
def size(path):
    total = 0
    try:
        with os.scandir(os.path.join(path, 'blobs')) as entries:
            for entry in entries:
                if time.monotonic() > until:
                    return None
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0
    return total
def ggufs(path):
    found, top = {}, os.path.join(path, 'snapshots')
    for base, _, files in os.walk(top):
        for name in files:
            if time.monotonic() > until:
                return None
            if name.endswith('.gguf') and len(found) < 500:
                full = os.path.join(base, name)
                own = os.path.relpath(full, top).partition('/')[2]
                try:
                    found[own] = max(found.get(own, 0), os.stat(full).st_size)
                except OSError:
                    pass
    return found
models = []
try:
    names = sorted(name for name in os.listdir(hub) if name.startswith('models--'))
except OSError:
    names = []
for name in names[:500]:
    path = os.path.join(hub, name)
    total, files = size(path), ggufs(path)
    models.append([name[8:].replace('--', '/', 1), None if files is None else total,
                   os.path.isfile(os.path.join(path, 'refs', 'main'))] + ([files] if files else []))
locked = []
def check(path):
    while path and not os.path.isdir(path):
        path = os.path.dirname(path)
    if path and path not in locked and not os.access(path, os.W_OK | os.X_OK):
        locked.append(path)
check(cache)
check(hub)
check(os.path.join(hub, '.locks'))
for name in names[:500]:
    for part in ('', 'blobs', 'refs', 'snapshots'):
        check(os.path.join(hub, name, part).rstrip('/'))
places = {'root': '/', 'home': home, 'hub': hub, 'tmp': '/tmp', 'shm': '/dev/shm'}
print(json.dumps({'hub': hub, 'models': models, 'locked': locked[:20],
                  'places': {k: [p, space(p)] for k, p in places.items()}}))
"""


class StorageDirectory(Value):
    """A directory that sparkfleet stores data in, and the disk below it; bytes."""

    path: str
    total: int
    free: int
    """Free bytes for this user."""
    device: int
    """Directories on one device share their space."""


class CachedModel(Value):
    """A model in the Hub's cache of a node."""

    id: str
    size: int | None
    """Bytes of its files; None if counting took too long."""
    refs_main: bool
    """Without `refs/main` it does not load offline under its name."""
    ggufs: Mapping[str, int] = {}
    """Bytes of its GGUF files, by their names in the repository: models of several tags are in one."""


class Disks(Value):
    """Directories of a node."""

    hub: str
    """The Hub's cache, by the environment of a login, as `checkpoints.io.hub_cache` finds it."""
    models: tuple[CachedModel, ...]
    locked: tuple[str, ...] = ()
    """Caches, and directories of the Hub's, in which this user may not write: a container that ran as root has made them."""
    places: dict[str, StorageDirectory]
    """By name: root, home, hub, tmp, shm."""


class ReadDisks(Fact[Disks]):
    """Reads free space and cached models. Counting ends after three seconds, complete or not."""

    argv = ("python3", "-I", "-S", "-c", _PROBE)

    @staticmethod
    def parse(output: str) -> Disks:
        """A JSON object."""
        found = json_of(output, dict, "the disks")
        models, places, locked = found.get("models"), found.get("places"), found.get("locked")
        if not isinstance(models, list) or not isinstance(places, dict):
            raise unexpected_output("the disks", output)
        return Disks(
            hub=text(found.get("hub", "")),
            models=tuple(_model(one, output) for one in models[:500]),
            locked=tuple(map(text, locked[:20])) if isinstance(locked, list) else (),
            places={text(name): _place(one, output) for name, one in places.items() if _is_known(one)},
        )


class ReadHomeSpace(Fact[int]):
    """Reads the bytes that are free for this user on the disk of its home."""

    argv = ("sh", "-c", "exec stat -f -c '%a %S' \"$HOME\"")

    @staticmethod
    def parse(output: str) -> int:
        """Free blocks and their size, as `stat -f` prints them."""
        return _stat_free(output, "the free space of the home directory")


class ReadContainerSpace(Fact[int]):
    """Reads the bytes that are free on the disk of the container tool's directory, in which containers write."""

    argv = (
        "sh", "-c",
        "d=$(docker info --format '{{.DockerRootDir}} {{.DriverStatus}}' 2>/dev/null);"
        f" case $d in *{CONTAINERD_DRIVER}*) [ ! -d {CONTAINERD_STORE} ] || d={CONTAINERD_STORE} ;; esac;"
        " d=${d%% [[]*};"
        " [ -d \"$d\" ] || d=$(podman info --format '{{.Store.GraphRoot}}') && exec stat -f -c '%a %S' \"$d\"",
    )  # fmt: skip

    @staticmethod
    def parse(output: str) -> int:
        """Free blocks and their size, as `stat -f` prints them."""
        return _stat_free(output, "the free space of containers")


def _stat_free(output: str, what: str) -> int:
    words = output.split()
    if len(words) != 2 or not all(word.isdecimal() and word.isascii() and len(word) < 16 for word in words):
        raise unexpected_output(what, output)
    return int(words[0]) * int(words[1])


def _model(one: object, output: str) -> CachedModel:
    if not isinstance(one, list) or len(one) not in (3, 4) or not isinstance(one[0], str):
        raise unexpected_output("the cached models", output)
    files = one[3] if len(one) == 4 else {}
    if not isinstance(files, dict):
        raise unexpected_output("the cached models", output)
    return CachedModel(
        id=text(one[0]),
        size=whole(one[1]),
        refs_main=one[2] is True,
        ggufs={text(name): whole(size) or 0 for name, size in list(files.items())[:500]},
    )


def _is_known(one: object) -> bool:
    return not (isinstance(one, list) and len(one) == 2 and one[1] is None)


def _place(one: object, output: str) -> StorageDirectory:
    if not isinstance(one, list) or len(one) != 2 or not isinstance(one[1], list) or len(one[1]) != 3:
        raise unexpected_output("the disks", output)
    total, free, device = (whole(number) for number in one[1])
    if total is None or free is None or device is None:
        raise unexpected_output("the disks", output)
    return StorageDirectory(path=text(one[0]), total=total, free=free, device=device)
