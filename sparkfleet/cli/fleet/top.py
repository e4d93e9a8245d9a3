"""`sparkfleet top`: the fleet in a terminal, live."""

from __future__ import annotations

import codecs
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.loading import loading
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.cli.output import console, event_line
from sparkfleet.cli.top.app import TopApp
from sparkfleet.cli.top.terminal import end_with_terminal
from sparkfleet.controlplane.views.speculation_advice import advice_for, advice_lines
from sparkfleet.errors import SpecError
from sparkfleet.fleet.deployments.status import describe_deployment, fleet_state
from sparkfleet.fleet.rank_logs import LoggedRank, rank_log
from sparkfleet.fleet.session import Session
from sparkfleet.planner.report.explain.plan import explain_plan

TAIL = 200
"""Lines of a log to begin with."""


def top(inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Show nodes, groups and their speed, live. Keys open a group's log, its events and the reasons of its plan."""
    if not (console.is_terminal and sys.stdin.isatty()):  # keys come from one, too
        raise SpecError(
            "`top` needs a terminal.",
            do="`sparkfleet status --watch` prints lines, `status --json` is for programs.",
        )
    session = open_session(inventory)
    return run(_top(session))


async def _top(session: Session) -> int:
    loading.erase()
    end_with_terminal(sys.stdin.fileno())
    app = TopApp(partial(fleet_state, session), SessionPages(session))
    await app.run_async()
    return app.return_code or Exit.DONE


class SessionPages:
    """Texts of deployments, read from the fleet by the use-cases of `logs`, `events` and `describe`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def log(self, deployment: str, replica: int, generation: int | None) -> AsyncIterator[str]:
        """Lines of the log of rank 0, and new ones as it grows. `generation`: None: the newest one's."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        which = LoggedRank(deployment, generation, replica)
        async for piece in rank_log(self._session, which, tail=TAIL, follow=True):
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            for line in lines:
                yield line.rstrip("\r")
        if rest:
            yield rest

    async def events(self, deployment: str) -> Sequence[str]:
        """The last events, oldest first."""
        described = await describe_deployment(self._session, deployment)
        return tuple(event_line(event).plain for event in described.events)

    async def reasons(self, deployment: str) -> Sequence[str]:
        """Lines of its plan with the reasons."""
        described = await describe_deployment(self._session, deployment)
        plan = described.status.plan
        if plan is None:
            return ("Its plan is not known.",)
        return (
            *explain_plan(plan, head=self._session.inventory.head),
            *advice_lines(advice_for(described.status)),
        )
