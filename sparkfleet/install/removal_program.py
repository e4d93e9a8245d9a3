"""Removes sparkfleet from a node. Sent to nodes by `agent.py`; standard library only, Python 3.8 or later.

The request: `verb` (`look` changes nothing, `remove`), `root` and `label` of the fleet (`runtime/files/state_probe.py`),
`only_state` (for a machine that is no node: nothing but `root`), `caches`. The result of both:
`{"found": [[path, bytes], …], "kept": [reason, …], "of_root": [path, …], "runs": [reason, …]}`.
If `runs` has a reason, nothing is removed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

SHARE = "~/.local/share/sparkfleet"
CACHE = "~/.cache/sparkfleet"
STATE = "~/.local/state/sparkfleet"
OF_ROOT = (
    "/usr/local/sbin/sparkfleet-rails",
    "/etc/sudoers.d/sparkfleet-rails",
    "/etc/sudoers.d/sparkfleet-page-cache",
    "/etc/systemd/system/sparkfleet-firewall.service",
    "/etc/sparkfleet/firewall.nft",
    "/etc/sysctl.d/60-sparkfleet-rails.conf",
    "/etc/netplan/60-sparkfleet.yaml",
)
LINGERS = "/var/lib/systemd/linger"
"""See `node_daemon/service_manager.py`."""
ROLES = ("role.json", "role.ended.json", "role.next.json", "head-move.json")
"""Files of a node that is part of a fleet, or whose `down` or move has not ended."""


def main(request: dict[str, Any], emit: Callable[..., None]) -> dict[str, Any]:
    """Run the request's verb."""
    root, label = request["root"], request["label"]
    runs = _runs(root, label)
    paths, kept = _paths(root, label, request["only_state"], request["caches"])
    found = [(path, _size(path)) for path in paths if os.path.lexists(path)]
    if request["verb"] == "remove" and not runs:
        for path, _ in found:
            _remove(path)
        _remove_empty(os.path.dirname(_run_directory(label)), os.path.dirname(root))
    of_root = []
    if not request["only_state"]:
        of_root = [path for path in OF_ROOT if os.path.lexists(path)]
        kept += _linger()
    return {"found": found, "kept": kept, "of_root": of_root, "runs": runs}


def _paths(root: str, label: str, only_state: bool, caches: bool) -> tuple[list[str], list[str]]:
    if only_state:
        return [root], []
    paths = [root, _run_directory(label)]
    users = [*_other_fleets(root), *_running_from(os.path.expanduser(SHARE))]
    if users:
        return paths, [f"{SHARE} and {CACHE}: used by {', '.join(users)}"]
    return [*paths, os.path.expanduser(SHARE), *([os.path.expanduser(CACHE)] if caches else [])], []


def _linger() -> list[str]:
    """`up` has enabled it, but services of the owner may need it."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return []
    if not os.path.exists(os.path.join(LINGERS, name)):
        return []
    return [f"linger of {name}: `loginctl disable-linger`, if no other service of yours runs without a login"]


def _run_directory(label: str) -> str:
    """See `state_probe.run_directory`."""
    return f"/tmp/sparkfleet-{os.getuid()}/{label[-8:]}"  # noqa: S108 (0700, owner checked when it was made)


def _runs(root: str, label: str) -> list[str]:
    """Signs that the fleet is up on this node."""
    reasons = [f"{root}/{name} exists" for name in ROLES if os.path.lexists(os.path.join(root, name))]
    if _processes(f"SPARKFLEET_RAY={label}".encode()):
        reasons.append("its processes run")
    if shutil.which("crontab"):
        lines = subprocess.run(["crontab", "-l"], capture_output=True, check=False).stdout
        if any(line.endswith(f"# sparkfleet {label}".encode()) for line in lines.splitlines()):
            reasons.append("cron starts it after a reboot")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if os.path.lexists(os.path.join(config, "systemd", "user", f"sparkfleet-{label}.service")):
        reasons.append("systemd starts it after a reboot")
    return reasons


def _processes(variable: bytes) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if variable in file.read().split(b"\0"):
                    return True
        except OSError:
            continue  # another user's, or it has ended
    return False


def _other_fleets(root: str) -> list[str]:
    """Names of other fleets with a state directory on this machine."""
    found = set()
    for parent in {os.path.dirname(root), os.path.expanduser(STATE)}:
        try:
            entries = [entry for entry in os.scandir(parent) if entry.is_dir()]
        except OSError:
            continue
        found |= {"fleet " + entry.name for entry in entries if entry.path != root}
    return sorted(found)


def _running_from(directory: str) -> list[str]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                program = file.read().split(b"\0")[0]
        except OSError:
            continue
        if program.startswith(directory.encode() + b"/"):
            return [f"process {pid}"]
    return []


def _size(path: str) -> int:
    """Bytes on the disk, without what symbolic links lead to."""
    total = os.lstat(path).st_blocks * 512
    if os.path.isdir(path) and not os.path.islink(path):
        for directory, names, files in os.walk(path):
            for name in (*names, *files):
                try:
                    total += os.lstat(os.path.join(directory, name)).st_blocks * 512
                except OSError:
                    continue
    return total


def _remove(path: str) -> None:
    """Remove a file, a link (not what it leads to), or a directory. Raises OSError."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    else:
        shutil.rmtree(path)


def _remove_empty(*directories: str) -> None:
    for directory in directories:
        if os.path.basename(directory).startswith("sparkfleet"):
            try:
                os.rmdir(directory)
            except OSError:
                continue  # another fleet's files, or it does not exist
