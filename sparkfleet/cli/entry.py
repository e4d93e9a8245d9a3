"""Entry point of `sparkfleet`. Imports nothing slow itself, so that Ctrl-C ends the program in its first moment, too."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""`Exit.INTERRUPTED`, whose module is among those that are still being imported."""


def main() -> None:
    """Import the command line and run it."""
    try:
        from sparkfleet.cli.main import main as run

        run()
    except KeyboardInterrupt:  # before the command line handles it: nothing was begun
        sys.exit(INTERRUPTED)
