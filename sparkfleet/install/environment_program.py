"""Makes sparkfleet's environment on a node. Sent to nodes by `agent.py`; standard library only, Python 3.9 or later.

The request's `verb` is `look`: the result is `{"pythons": [[version, path], …]}`; or `make`, with `name`, `python`,
`wheel_name`, `wheel` and `pip` in base64, `pins`, `hashes`, `wheels`: makes the environment, unless it exists. Reports
`step`, with `text`, while it works; the result is `{"python", "fresh"}`.
"""

from __future__ import annotations

import base64
import fcntl
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

HOME = os.path.expanduser("~/.local/share/sparkfleet/env")
KEPT = os.path.expanduser("~/.cache/sparkfleet/wheels")
KEEP = 3
OTHER_HASH = "DO NOT MATCH THE HASHES"
"""Words of pip about a file that is not the one that was tested."""
NAMES = ("python3.12", "python3.11", "python3.13", "python3")


class Failed(Exception):
    """A command failed. `means` is the end of its output."""

    def __init__(self, what: str, means: str) -> None:
        super().__init__(what)
        self.means = means


def main(request: dict[str, Any], emit: Callable[..., None]) -> dict[str, Any]:
    """Run the request's verb."""
    return look() if request["verb"] == "look" else make(request, emit)


def look() -> dict[str, Any]:
    """Pythons that sparkfleet can use, best first."""
    found: dict[str, str] = {}
    for name in NAMES:
        path = shutil.which(name)
        if path:
            asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            version = re.match(r"Python (3\.(?:11|12|13))\.", asked.stdout)
            if version:
                found.setdefault(version.group(1), path)
    return {"pythons": sorted(found.items(), key=lambda item: NAMES.index("python" + item[0]))}


def make(order: dict[str, Any], emit: Callable[..., None]) -> dict[str, Any]:
    """Make the environment of this name. One that an interrupted attempt has left has no `complete` file, and is deleted; so
    is one whose Python is gone, or has become another version."""
    os.makedirs(HOME, mode=0o700, exist_ok=True)
    place = os.path.join(HOME, order["name"])
    python = os.path.join(place, "bin", "python")
    with open(place + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = not os.path.exists(os.path.join(place, "complete")) or not _runs(python)
        if fresh:
            shutil.rmtree(place, ignore_errors=True)
            _build(order, place, python, emit, lock.fileno())
            os.sync()  # after a power cut an environment with empty files would count as complete
            with open(os.path.join(place, "complete"), "w") as mark:
                mark.write("\n".join(order["pins"]) + "\n")
    os.utime(place)
    _prune(place)
    return {"python": python, "fresh": fresh}


def _runs(python: str) -> bool:
    """True if an environment's interpreter starts, and finds sparkfleet: an upgrade of the system may have removed it.

    Raises Failed, or OSError, if that is not known: processes may run from the environment.
    """
    try:
        tried = subprocess.run(
            [python, "-I", "-c", "import sparkfleet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except FileNotFoundError:
        return False
    if tried.returncode < 0:
        raise Failed(
            python + " was ended by signal " + str(-tried.returncode),
            tried.stderr.decode(errors="replace")[-300:],
        )
    return tried.returncode == 0


def _build(order: dict[str, Any], place: str, python: str, emit: Callable[..., None], lock: int) -> None:
    """Create the environment. Its commands hold the lock, too: one that outlives this program would go on writing."""
    emit("step", text="creating the Python environment")
    _call([order["python"], "-I", "-m", "venv", "--without-pip", place], lock)
    parts = os.path.join(place, "sparkfleet-install")
    os.mkdir(parts)
    wheel = _write(parts, order["wheel_name"], base64.b64decode(order["wheel"]))
    pip = _write(parts, "pip-any-py3-none-any.whl", base64.b64decode(order["pip"]))
    pins = _write(parts, "constraints.txt", "\n".join(order["pins"]).encode())
    # Wheels only: a source distribution runs its own code to be built.
    # Isolated: packages of a login's PYTHONPATH would count as installed, and be missing later.
    install = [python, "-I", os.path.join(pip, "pip"), "install", "--no-input", "--disable-pip-version-check"]
    install += ["--only-binary=:all:", "--no-user"]
    emit("step", text="installing sparkfleet and Ray")
    pinned = ["--constraint", pins, wheel + "[head]"]
    offline = [*install, "--no-index", "--find-links", order["wheels"] or KEPT, *pinned]
    if order["wheels"]:
        _call(offline, lock)
    else:
        # Wheels that were copied here earlier serve if the node has no internet.
        otherwise = offline if os.path.isdir(KEPT) else None
        if order["hashes"]:
            hashed = _write(parts, "requirements.txt", "\n".join(order["hashes"]).encode())
            _call([*install, "--require-hashes", "--requirement", hashed], lock, otherwise)
            _call([*install, "--no-index", *pinned], lock)
        else:
            _call([*install, *pinned], lock, otherwise)
    shutil.rmtree(parts)


def _write(directory: str, name: str, data: bytes) -> str:
    path = os.path.join(directory, os.path.basename(name))
    with open(path, "wb") as file:
        file.write(data)
    return path


def _call(argv: list[str], lock: int, otherwise: list[str] | None = None) -> None:
    """Run to its end; if it fails, run `otherwise`; if that fails too, raise Failed."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        pass_fds=(lock,),
    )
    if done.returncode and otherwise:
        _call(otherwise, lock)
    elif done.returncode:
        log = done.stdout.decode(errors="replace").strip().splitlines()
        raise Failed(
            " ".join(argv[:3]) + " failed with exit code " + str(done.returncode), " ".join(_telling(log))
        )


def _telling(log: list[str]) -> list[str]:
    """Lines of a failed command that name its cause: pip's from its first error on, of a file with another hash the file."""
    at = next((at for at, line in enumerate(log) if line.startswith("ERROR:")), max(0, len(log) - 8))
    if not any(OTHER_HASH in line for line in log[at : at + 1]):
        return log[at : at + 8]
    file = log[at + 1 : at + 2]
    got = [line.strip() for line in log[at:] if line.strip().startswith("Got ")]
    return [f"The packages {OTHER_HASH}:", *(line.strip().partition(" (from")[0] for line in file), *got[:1]]


def _prune(place: str) -> None:
    """Delete older environments except the newest few, and those that a fleet runs from or starts from after a reboot."""
    old = [entry.path for entry in os.scandir(HOME) if entry.is_dir() and entry.path != place]
    surplus = sorted(old, key=os.path.getmtime, reverse=True)[KEEP - 1 :]
    commands = _commands() if surplus else ""
    if commands is None:
        return  # what starts after a reboot cannot be read: each of them may be needed
    for path in surplus:
        if f"/env/{os.path.basename(path)}/" not in commands:
            shutil.rmtree(path, ignore_errors=True)


def _commands() -> str | None:
    """Commands that run on this machine, or that cron or systemd starts for this user. None: they cannot be read."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append(file.read().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    try:
        for unit in glob.glob(os.path.join(glob.escape(config), "systemd", "user", "sparkfleet-*.service")):
            with open(unit, errors="replace") as text:
                found.append(text.read())
    except OSError:
        return None
    if shutil.which("crontab"):
        cron = subprocess.run(
            ["crontab", "-l"], capture_output=True, text=True, errors="replace", check=False
        )
        if cron.returncode and "no crontab" not in cron.stderr:
            return None
        found.append(cron.stdout)
    return "\n".join(found)
