"""Words after Ctrl-C: what goes on without this program, and how to follow it. Imports nothing of the verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_READS = "Interrupted. Nothing was changed, and the fleet continues."
_APPLIES = (
    "Interrupted. What the fleet has accepted goes on: `sparkfleet status --watch` follows it.\n"
    "Running the same command again does what is missing."
)
_COPIES = "Interrupted. Files that have arrived are kept: the same command continues with the rest."

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("apply", "scale", "restart", "rollback", "undrain", "demo"), _APPLIES),
    "load": "Interrupted. A start that has begun goes on; one that waited for memory no longer does: nothing ends for it.\n"
    "`sparkfleet status` shows which.",
    "unload": "Interrupted. It ends once its requests have ended: `sparkfleet status --watch` follows it.",
    "drain": f"{_APPLIES} What is drained stays so until `sparkfleet undrain NODE|GROUP`.",
    "up": "Interrupted. Nodes that are starting go on: `sparkfleet status --watch` follows them.\n"
    "`sparkfleet up` starts what is missing.",
    "down": "Interrupted. Some of the fleet may be stopped, the rest of it serves on: `sparkfleet status` shows which.\n"
    "`sparkfleet down` stops the rest, `sparkfleet up` starts all of it again.",
    "delete": "Interrupted. If the deletion was accepted, it goes on: `sparkfleet status --watch` follows it.",
    "move-head": "Interrupted. `sparkfleet status` shows where the head is; `sparkfleet move-head` continues.",
    "upgrade": "Interrupted. Engines go on. `sparkfleet upgrade` begins again; if the fleet is down, `sparkfleet up` with\n"
    "this release completes what was begun.",
    "models": _COPIES,
    "init": "Interrupted. No node was changed, and the inventory is as it was.",
    "fabric": "Interrupted. `sparkfleet fabric plan` shows which addresses are not set; the same command continues.",
    "selftest": "Interrupted. The fleet continues. `sparkfleet delete selftest` ends the model of the test, if it runs.",
    **dict.fromkeys(
        ("prune", "uninstall"), "Interrupted. What was removed is gone: the same command removes the rest."
    ),
    "restore": "Interrupted. The store is the former one or the new one, and whole: `sparkfleet status` shows which.",
    "backup": "Interrupted. The controller makes a copy after each change by itself: `sparkfleet restore` lists them.",
    "observe": "Interrupted. The fleet continues. The same command does what is missing.",
    "keys": "Interrupted. The fleet continues. `sparkfleet keys list` shows if the change was accepted.",
    "top": "",
    "ask": "Interrupted. The engine ends this answer; the fleet continues.",
    "bench": "Interrupted. The engine ends these answers, and nothing was kept; the fleet continues.",
    **dict.fromkeys(
        (
            "describe",
            "plan",
            "suggest",
            "convert",
            "inspect",
            "doctor",
            "explain",
            "route",
            "history",
            "bundle",
        ),
        _READS,
    ),
    **dict.fromkeys(("accuracy", "knowledge", "version", "help", "connect", "usage"), _READS),
}
"""By verb."""
_OTHER = "Interrupted. The fleet continues with everything that was applied."
"""Without a verb."""
ENDLESS = frozenset({"--follow", "-f", "--watch", "-w"})
"""Options with which a verb that reads goes on until Ctrl-C: then it is the usual end."""
FOLLOWED = frozenset({"logs", "events", "status", "ps"})
"""Verbs that have such an option."""

LISTS = (["models", "list"], ["keys", "list"], ["fabric", "plan"], ["fabric", "measure"])
"""Verbs that only read, of groups of which others change something."""


def is_endless(argv: Sequence[str]) -> bool:
    """True if a command line prints what is read until nobody reads on, such as `logs | head`."""
    verb = _verb(argv)
    return verb in {"logs", "events"} or (verb in FOLLOWED and bool(ENDLESS.intersection(argv)))


def interrupted_words(argv: Sequence[str]) -> str:
    """The words after Ctrl-C in a command line, without the program's name; "" if it was the usual end of it."""
    verb = _verb(argv)
    if [word for word in argv if not word.startswith("-")][:2] in LISTS:
        return _READS
    if verb in FOLLOWED:
        return "" if ENDLESS.intersection(argv) else _READS
    return WORDS.get(verb, _OTHER)


def _verb(argv: Sequence[str]) -> str:
    return next((word for word in argv if not word.startswith("-")), "")
