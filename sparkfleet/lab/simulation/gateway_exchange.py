"""Exchange of the controller with the simulated gateways: the tables that they follow, and the reports that they send."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.status import app_name
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.clients import DEMANDED, LONGEST_REQUEST_S, SimulatedClients
from sparkfleet.lab.simulation.controller_processes import ControllerProcesses
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.gateway import SimulatedGateway
from sparkfleet.lab.simulation.published_tables import table_of
from sparkfleet.specs.timeouts import Timeouts

LONG_ANSWERS = 0.15
"""Share of the groups that are retired with a request that takes longer than those of `SimulatedClients`, such as an agent's
answer of a reasoning model."""
LONGEST_DRAIN_S = Timeouts().drain_s
"""Longest time for which the requests of a group that is retired are waited for."""
REGISTER_S = 5.0
"""Seconds between two reports of a gateway (`ray_serve.REGISTER_S`, in a module that imports Ray)."""


class GatewayExchange:
    """Way of tables to the gateways, and of their reports to the controller.

    Args:
        fleet: the machines, with the engines that serve.
        processes: of the controller.
        chance: of clients.
        answers: chance of the length of answers that groups finish which are retired.
        loses: gives the share of reports that are lost on their way.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        processes: ControllerProcesses,
        chance: random.Random,
        answers: random.Random,
        loses: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._processes = processes
        self._chance = chance
        self._answers = answers
        self._loses = loses
        self.clients = SimulatedClients(fleet.time, chance, self._serves)

    async def run(self) -> None:
        """Gateways get the newest table, and the controller their reports."""
        self.clients.pass_time()
        for gateway in self.clients.gateways:
            controller = self._processes.controller
            if controller is not None and controller.gateways.is_current:
                gateway.follow(await table_of(controller))
            is_due = gateway.has_news or self._fleet.time.seconds - gateway.reported_at >= REGISTER_S
            if is_due and self._processes.controller is not None:
                await self._register(gateway, self._processes.controller)

    async def drains_s(self, group: GroupKey) -> float:
        """Seconds until a group's engine has ended, which finishes its requests first."""
        longer_s = 0.0
        if self._answers.random() < LONG_ANSWERS:
            longer_s = self._answers.uniform(LONGEST_REQUEST_S, LONGEST_DRAIN_S)
        if group[0] not in DEMANDED:
            return longer_s
        caller = self._processes.caller
        if caller is not None and caller.gateways.is_current:
            table = await table_of(caller)
            for gateway in self.clients.gateways:
                gateway.follow(table)
        app = app_name(*group)
        busy_until = max(gateway.busy_until(app) for gateway in self.clients.gateways)
        return max(longer_s, self._chance.uniform(0.0, 8.0), busy_until - self._fleet.time.seconds)

    async def _register(self, gateway: SimulatedGateway, controller: Controller) -> None:
        report = gateway.report()
        if self._chance.random() >= self._loses():
            with contextlib.suppress(sqlite3.Error):
                await controller.intake.register_gateway(report)

    def _serves(self, app: str) -> bool:
        return any(app_name(*key) == app and one.ready for key, one in self._fleet.engines.items())
