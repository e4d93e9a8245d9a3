"""Drops the page cache before an engine loads: on unified memory the driver does not reclaim cached pages.

It needs root: one line in sudoers permits this one command. Without it the files of models are given back, which needs none
(`runtime/files/cached_files.py`).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Channel

COMMAND = ("/usr/sbin/sysctl", "-w", "vm.drop_caches=3")
DROP_BY_HAND = f"sync && sudo {' '.join(COMMAND)}"
"""Command for a person to type; `sync` first writes dirty pages, so that more can be dropped."""
_ENTRY = re.compile(r"^ {4}\([^)\n]*\) (.*)$", re.MULTILINE)
"""A line of `sudo --list`: `    (root) NOPASSWD: /bin/a, PASSWD: /bin/b`; one of 80 columns goes on below eight spaces."""
_OPTIONS = re.compile(r"^(?:[A-Z_]+=\S+ +)+|\bsha\d+:\S+ +")
"""May precede the tags of an entry (`CWD=/tmp TIMEOUT=90 `), and a command (`sha256:… `)."""
MOST_REPEATS = 2
"""Repetitions in a regular expression of sudoers that is matched here: one with many takes for ever on purpose."""
FILE = "/etc/sudoers.d/sparkfleet-page-cache"


async def drop(channel: Channel) -> bool:
    """Drop it; False if that is not permitted. Nothing is lost: dirty pages stay until they are written."""
    return await _sudo(channel, *COMMAND)


async def may_drop(channel: Channel) -> bool:
    """True if `drop` would be permitted. Changes nothing."""
    if not await _sudo(channel, "--list", *COMMAND):
        return False
    # If any line of sudoers has NOPASSWD, such as that of the rails, what needs a password is listed as well.
    try:
        listed = await channel.run(("sudo", "--non-interactive", "--list"), env={"LC_ALL": "C"}, timeout_s=20)
    except NodeError:
        return False
    return not _needs_password(listed.stdout)


def _needs_password(listed: str) -> bool:
    """True if the last entry of `sudo --list` for the command does not have NOPASSWD: the last one counts."""
    if "\nUser root may run" in listed or "!authenticate" in listed:
        return False
    needed = False
    for entry in _ENTRY.findall(listed.replace("\n        ", " ").replace("\\=", "=")):
        free = False
        for words in entry.split(", "):
            *tags, command = re.split(r"(?<=[A-Z]): +", _OPTIONS.sub("", words))
            free = (free or "NOPASSWD" in tags) and "PASSWD" not in tags
            if _is_for_it(command):
                needed = not free
    return needed


def _is_for_it(command: str) -> bool:
    """True if the command of an entry is ours: by name, directory, wildcards, or (sudo 1.9.10) regular expressions."""
    if command in ("ALL", "/usr/sbin/", COMMAND[0]) or fnmatchcase(" ".join(COMMAND), command):
        return True
    path, _, arguments = command.partition(" ")
    return _fits(COMMAND[0], path) and (not arguments or _fits(" ".join(COMMAND[1:]), arguments))


def _fits(text: str, pattern: str) -> bool:
    if not pattern.startswith("^"):
        return fnmatchcase(text, pattern)
    if "[:" in pattern or sum(map(pattern.count, "*+?{")) > MOST_REPEATS:
        return True  # not read here; `sudo --list COMMAND` has found an entry that permits it
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def sudoers(user: str) -> str:
    """Line of sudoers that permits it."""
    return f"{user} ALL=(root) NOPASSWD: {' '.join(COMMAND)}"


def how_to_permit(user: str) -> str:
    """Command to type on a node, once, to permit it."""
    return f"echo '{sudoers(user)}' | sudo tee {FILE} && sudo chmod 0440 {FILE}"


async def _sudo(channel: Channel, *words: str) -> bool:
    try:
        return (await channel.run(("sudo", "--non-interactive", *words), timeout_s=20)).exit_code == 0
    except NodeError:
        return False  # no sudo, or a slow node: a start without it is slower, not wrong
