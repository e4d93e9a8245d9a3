"""Exit codes of every verb. They are part of the public interface."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit code of a finished command."""

    DONE = 0
    """Done, or nothing to change."""
    ERROR = 1
    """Also a wrong command line, which gives 2 elsewhere: a script must not take it for PENDING."""
    PENDING = 2
    """`plan`, `fabric plan`: applying would change something."""
    INFEASIBLE = 3
    """Nothing in the fleet can serve a deployment."""
    UNREACHABLE = 4
    """The head was never reached: it is not known if the fleet is up. Nothing was changed on it (`options.run`)."""
    UNREADABLE = 5
    """The fleet's state cannot be read, its controller does not answer, or it waits for its store. Nothing was changed."""
    WRONG_FLEET = 6
    """Another fleet than the inventory's answers. Nothing was changed."""
    INTERRUPTED = 130
    """Ctrl-C: the command stopped watching; the fleet continues the work."""
    READER_LEFT = 141
    """The reader of the output closed the pipe (128 + SIGPIPE) before the command knew its outcome; 0 of an endless one."""
