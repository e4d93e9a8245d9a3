"""Processes of the simulated controller: one that works or waits for its store, and one that lives on beside another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sparkfleet.controlplane.clocks import WallClock
from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.nodes import Nodes
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import NodeReport, app_name
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.gateway.routing_table import GroupEntry
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.entries import SimulatedEntries
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.plans import launch
from sparkfleet.lab.simulation.store_place import FLEET, StorePlace
from sparkfleet.telemetry.metrics import ControlMetrics

LOOKS_AGAIN_S = 5.0
"""Seconds after which a controller looks for its store again; the real one does after one."""
MADE_ROOM = "it made room for "
"""Beginning of the reason for which one deployment ends for another."""


class ControllerKilledError(BaseException):
    """The controller's process ends here; nothing of it may catch this."""


class ControllerProcesses:
    """Processes on the head.

    Args:
        fleet: the machines.
        place: of the store.
        serve: all applications.
        nodes: the nodes as a controller asks for them.
        note: logs a line.
        on_new: called with each new process.
        on_lost: called at the end of each: what is on its way to it is lost.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        place: StorePlace,
        *,
        serve: ServeBackend,
        nodes: Nodes,
        note: Callable[[str], None],
        on_new: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._time = fleet.time
        self._place = place
        self._serve = serve
        self._nodes = nodes
        self._note = note
        self._on_new = on_new
        self._on_lost = on_lost
        self.controller: Controller | None = None
        self.lingering: Controller | None = None
        """The controller before, if its process still lives although Ray has started another."""
        self.caller: Controller | None = None
        """The controller whose round runs."""
        self.rounds: list[tuple[float, int]] = []
        """Rounds since the last check: when, of which process, by their order."""
        self.dying = False
        """The controller's process ends at its next call."""
        self.dies_in_swap: tuple[str, int] | None = None
        """A call of Serve and a count: its process ends in the pause of that number of this call while one deployment on
        demand ends for another; None: it does not."""
        self.is_held = False
        """True while the controller's process lives and waits for its store."""
        self.looked_at = float("-inf")
        """Moment at which this controller last looked at its nodes, simulated seconds."""
        self._wall = WallClock(self._time.now)
        self._table: Mapping[str, GroupEntry] = {}
        """The table that the gateways hold, as it was read last."""
        self._lock, self._lingering_lock = place.lock(), place.lock()
        self._number = 0
        """Of the process that started last: the first one is 1."""
        self._lingering_number = 0

    def start(self) -> None:
        """A new process on the head, if it is up and there is none. It waits if its store cannot be used."""
        if self.controller is not None or not self._fleet.head.up:
            return
        try:
            self._lock.take()
            store = self._place.open()
        except StoreError as error:
            self.hold(error)
            return
        self.is_held = False
        self.dying = False
        self._number += 1
        self.looked_at = float("-inf")
        self._on_new()
        head = self._fleet.head
        self.controller = Controller(
            fleet=FLEET,
            store=store,
            serve=self._serve,
            metrics=ControlMetrics(),
            address=HeadAddress(ray="", api="", gateway_host="127.0.0.1", gateway_port=8000),
            launch_of=launch,
            nodes=self._nodes,
            entries=SimulatedEntries(),
            here=NodeReport(name=head.name, joined=True, boot=f"{head.name}-{head.boots}"),
            clocks=self._time.now,
            wall=self._wall,
            check=partial(self._place.check, store),
        )
        self._note("the controller starts")

    def hold(self, error: StoreError) -> None:
        """The controller waits for its store, and looks for it again."""
        if not self.is_held:
            # Without its path: a replay has the same log.
            self._note(f"the controller waits: its store is {error.fault}")
        self.is_held, self.controller = True, None
        self._on_lost()
        self._time.after(LOOKS_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        if self.is_held:
            self.start()

    def end(self, back_after_s: float | None) -> None:
        """The controller's process ends; Ray starts another one, unless it has lost its head (None)."""
        if self.controller is None and not self.is_held:
            return
        self.controller, self.is_held = None, False
        self._lock.release()
        self._on_lost()
        self._note("the controller ends")
        if back_after_s is not None:
            self._time.after(back_after_s, self.start)

    def end_in_round(self) -> None:
        """The controller's process ends at its next call."""
        self.dying = self.controller is not None

    def replace(self, lives_s: float) -> None:
        """Ray starts another controller, and this one's process lives on for so long: it was stopped, or lost its Ray."""
        if self.controller is None or self.lingering is not None:
            return
        lingering = self.lingering = self.controller
        self._lingering_number = self._number
        self._lingering_lock, self._lock = self._lock, self._place.lock()
        self.controller = None
        self._time.after(lives_s, lambda: self.end_lingering() if self.lingering is lingering else None)
        self._note("the controller is replaced, and its process lives on")
        self.start()

    def end_lingering(self) -> None:
        """The process of the controller before ends, if it still lives."""
        if self.lingering is not None:
            self.lingering = None
            self._lingering_lock.release()
            self._place.back_at = self._time.seconds
            self._note("the process of the controller before ends")

    async def round(self, controller: Controller) -> None:
        """A round of a controller's work."""
        number = self._lingering_number if controller is self.lingering else self._number
        self.caller = controller
        self.rounds.append((self._time.seconds, number))
        await controller.round()
        if controller.gateways.is_current:
            self._table = controller.gateways.published()

    def count_call(self, call: str) -> None:
        """Counts a pause of a call of Serve until the process is to end in a swap."""
        if self.dies_in_swap is None or self.controller is None or self.caller is not self.controller:
            return
        name, left = self.dies_in_swap
        swaps = any(why.startswith(MADE_ROOM) for why in self.controller.fleet.pending.unloaded.values())
        if call == name and swaps:
            self.dies_in_swap = (name, left - 1) if left > 1 else None
            self.dying = self.dying or left == 1

    def require_caller(self) -> None:
        """Raises ControllerKilledError if the process whose round runs has ended, or ends at its next call."""
        dies = self.dying and self.caller is self.controller
        if dies or self.caller not in (self.controller, self.lingering):
            raise ControllerKilledError

    def is_published(self, group: GroupKey) -> bool:
        """True if the gateways' table names a group as ready; the former controller's until this one has its own."""
        if self.caller is not None and self.caller.gateways.is_current:
            self._table = self.caller.gateways.published()
        entry = self._table.get(app_name(*group))
        return entry is not None and entry.ready
