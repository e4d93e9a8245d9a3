"""`sparkfleet top`: watches the fleet live on a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.errors import SparkfleetError, SpecError
from sparkfleet.fleet.events import ignored


def top(inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Watch the fleet live: nodes, groups, streams and speeds, with logs, events and reasons at a key."""
    if find_spec("textual") is None:
        raise SparkfleetError(
            "`sparkfleet top` draws with textual, which is not installed here.",
            do="`pip install 'sparkfleet[top]'` installs it. `sparkfleet status --watch` needs nothing more.",
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SpecError(
            "`sparkfleet top` needs a terminal.", do="`sparkfleet status --json` is for programs."
        )
    from sparkfleet.cli.live.source import SessionSource
    from sparkfleet.cli.live.top_app import TopApp

    # A line on standard error would be drawn into the view; the condition itself is part of it.
    session = open_session(inventory, ignored)
    run(TopApp(SessionSource(session)).run_async())
    return Exit.DONE
