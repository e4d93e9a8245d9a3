"""Checks what a node needs at its next start only, or an engine at its, files of the state directory and Ray: nobody else
would notice before."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from sparkfleet.errors import ControlError
from sparkfleet.runtime.files.fleet_paths import FleetPaths, read_secret


def spoilt_files(paths: FleetPaths) -> tuple[str, ...]:
    """The directory and files that are missing or cannot be used, each as a sentence with what puts it right."""
    directory = _directories(paths)
    if directory and not os.access(paths.root, os.X_OK):
        return (directory,)  # its files cannot even be looked for
    secrets = map(_secret, (paths.engine_secret, paths.ray_token))
    troubles = [directory, *secrets, _tokens(paths), _json(paths.role)]
    if paths.run_address.exists():  # only the head has one; this copy is used meanwhile
        troubles.append(_json(paths.address))
    return tuple(trouble for trouble in troubles if trouble)


def start_bar(paths: FleetPaths) -> str:
    """The reason for which no engine starts with this state directory, with what puts it right; "" if one may."""
    return _directories(paths) or _secret(paths.engine_secret) or _tokens(paths)


def stopped_words(pid: int, what: str, means: str) -> tuple[str, ...]:
    """A process that somebody stopped (SIGSTOP), as a sentence with the command; () for one that runs or is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ()
    if state not in ("T", "t"):
        return ()
    return (f"{what} is stopped, and {means}: `kill -CONT {pid}` lets it run on.",)


def _directories(paths: FleetPaths) -> str:
    """The first directory in which no start can write, in words; "" if it can in all of them."""
    within = (one for one in (paths.ranks, paths.logs, paths.kernels) if os.path.lexists(one))
    words = _directory(paths.root, "`sparkfleet up`")
    return words or next(filter(None, (_directory(one, "the next start") for one in within)), "")


def _directory(path: Path, made_by: str) -> str:
    means = "what runs goes on, and nothing can be started or changed there"
    if os.access(path, os.W_OK | os.X_OK) and os.path.isdir(path):
        return ""
    if not os.path.lexists(path):
        return f"{path} is missing: {means}. {made_by.capitalize()} makes it."
    if os.access(path.parent, os.X_OK) and not os.path.isdir(path):
        return f"{path} is no directory: {means}. Move it away; {made_by} makes the directory."
    return f"{path} cannot be written: {means}. {_writable_again(path)}"


def _writable_again(path: Path) -> str:
    is_read_only, owner = False, os.getuid()
    with suppress(OSError):
        is_read_only, owner = bool(os.statvfs(path).f_flag & os.ST_RDONLY), path.stat().st_uid
    if is_read_only:
        return "Its file system is mounted read-only: `sudo dmesg` shows if the disk has errors."
    if owner != os.getuid():
        return f"It belongs to user {owner}: `sudo chown -R {os.getuid()} {path}` gives it back."
    return f"`chmod 700 {path}` permits it."


def _secret(path: Path) -> str:
    try:
        read_secret(path)
    except ControlError as error:
        return f"{error.what} {error.do.partition('. ')[0]}."
    return ""


def _tokens(paths: FleetPaths) -> str:
    if not paths.engine_tokens.exists():
        return ""
    try:
        paths.read_token_secrets()
    except ControlError as error:
        return f"{error.what} `sparkfleet down` and `sparkfleet up` write it again from the head's."
    return ""


def _json(path: Path) -> str:
    try:
        content = json.loads(path.read_text())
        reason = "" if isinstance(content, dict) else "it has no fields"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "it is not JSON"
    return f"{path} cannot be used: {reason}. `sparkfleet up` writes it again." if reason else ""
