"""Finds containers in which nothing runs: paused, or every process of them stopped by a signal. Stdlib only.

The container's id is in the path of its processes' cgroup, with docker and with podman. That and the state of a process are
readable for every user, so this works for containers of root, whose sockets and environments are not.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from sparkfleet.runtime.processes import Process, is_stopped, processes

_ID = re.compile(r"[0-9a-f]{64}")
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_INITS = frozenset({"bash", "catatonit", "dash", "docker-init", "dumb-init", "sh", "tini"})
"""Names of programs that only wait for the server that they have started."""


def halted_words(container: str) -> str:
    """Reason for which nothing in a container runs, as the end of a sentence; "" if something may run, or that is not known.

    Args:
        container: its full id.
    """
    if _ID.fullmatch(container) is None:
        return ""
    inside = [one for one in processes() if container in _cgroup(one.pid)]
    if not inside:
        return ""
    if any(map(_is_frozen, _cgroup(inside[0].pid).splitlines())):
        return "its container is paused"
    parents = {one.parent for one in inside}
    if any(not is_stopped(one.pid) and not _only_waits(one, parents) for one in inside):
        return ""
    stopped = [one for one in inside if is_stopped(one.pid)]
    return f"process {stopped[0].pid} of its container was stopped by a signal" if stopped else ""


def _only_waits(one: Process, parents: set[int]) -> bool:
    return one.name in _INITS and one.pid in parents


def _cgroup(pid: int) -> str:
    """Lines of `/proc/PID/cgroup`: `0::/path`, and with version 1 `9:freezer:/path` and others; "" for a process that is
    gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cgroup").read_text(errors="replace")
    return ""


def _is_frozen(line: str) -> bool:
    """True if a line of `/proc/PID/cgroup` is that of a frozen cgroup."""
    _, controllers, path = (*line.split(":", 2), "", "")[:3]
    below = path.lstrip("/")
    with suppress(OSError):
        if not controllers:
            return "frozen 1" in (_CGROUPS / below / "cgroup.events").read_text().splitlines()
        if "freezer" in controllers.split(","):
            return (_CGROUPS / "freezer" / below / "freezer.state").read_text().strip() == "FROZEN"
    return False
