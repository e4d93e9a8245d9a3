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
    **dict.fromkeys(("apply", "scale", "restart", "rollback", "drain"), _APPLIES),
    "up": "Interrupted. Nodes that are starting go on: `sparkfleet status --watch` follows them.\n"
    "`sparkfleet up` starts what is missing.",
    "down": "Interrupted. Some of the fleet may be stopped, the rest of it serves on: `sparkfleet status` shows which.\n"
    "`sparkfleet down` stops the rest.",
    "delete": "Interrupted. If the deletion was accepted, it goes on: `sparkfleet status --watch` follows it.",
    "move-head": "Interrupted. `sparkfleet status` shows where the head is; `sparkfleet move-head` continues.",
    "upgrade": "Interrupted. Engines go on. `sparkfleet up` with this release completes what was begun.",
    "models": _COPIES,
    "ask": "Interrupted. The engine ends this answer; the fleet continues.",
    **dict.fromkeys(
        ("status", "describe", "plan", "inspect", "doctor", "explain", "route", "history", "bundle"), _READS
    ),
    **dict.fromkeys(("accuracy", "knowledge", "version", "help", "connect", "usage"), _READS),
}
"""By verb."""
_OTHER = "Interrupted. The fleet continues with everything that was applied."
ENDLESS = frozenset({"--follow", "-f", "--watch", "-w"})
"""Options with which a verb that reads goes on until Ctrl-C: then it is the usual end."""
_FOLLOWED = frozenset({"logs", "events", "status", "ps"})


def interrupted_words(argv: Sequence[str]) -> str:
    """The words after Ctrl-C in a command line, without the program's name; "" if it was the usual end of it."""
    verb = next((word for word in argv if not word.startswith("-")), "")
    if verb in _FOLLOWED:
        return "" if ENDLESS.intersection(argv) else _READS
    return WORDS.get(verb, _OTHER)
