"""A controller on fakes, which the tests of `controlplane/controller.py`, its parts and `controlplane/policy/` share."""

from control_values import deployment, inventory, plan
from controller_fakes import FakeNodes, FakeServeBackend

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.engines.failure_signatures import Cause, Diagnosis
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.lab.simulation.entries import SimulatedEntries
from sparkfleet.telemetry.metrics import ControlMetrics
from sparkfleet.units import GIB

ADDRESS = HeadAddress(
    ray="127.0.0.2:1",
    api="http://127.0.0.2:2",
    gateway_host="127.0.0.1",
    gateway_port=8000,
    max_body_bytes=32_000_000,
)


class World:
    """A controller on fakes, and what it did to them."""

    def __init__(self, tmp_path):
        self.store = Store(tmp_path / "s.db")
        self.apps = FakeServeBackend()
        self.metrics = ControlMetrics()
        self.inventory_nodes = ("this",)
        self.nodes = FakeNodes({"this": 100 * GIB})
        self.entries = SimulatedEntries()
        self.controller = self.restarted()

    def restarted(self, **more):
        self.controller = Controller(
            fleet="home",
            store=self.store,
            serve=self.apps,
            metrics=self.metrics,
            address=ADDRESS,
            launch_of=lambda *asked: launch_for(self.inventory(), *asked),
            nodes=self.nodes,
            entries=self.entries,
            here=NodeReport(name="this", joined=True, boot=self.nodes.boots["this"]),
            **more,
        )
        return self.controller

    def inventory(self):
        names = self.inventory_nodes
        return inventory(*names, cable=len(names) == 2)

    async def put(self, **fields):
        high, rungs = fields.pop("high", 1.0), fields.pop("rungs", 1)
        desired, _ = await self.controller.commands.put(
            deployment(), plan(high=high, rungs=rungs, **fields), "me"
        )
        await self.controller.reconcile()
        return desired.generation

    async def ready(self, generation, replica=0):
        self.apps.become("tiny", generation, "running")
        await self.controller.intake.report(report(generation, replica=replica, phase=GroupPhase.READY))
        await self.controller.reconcile()

    async def fails(self, cause="memory", **fields):
        """A start fails, and Serve gives it up."""
        report = diagnosed(cause, **fields)
        await self.controller.intake.report(report)
        self.apps.become("tiny", report.generation, "failed", replica=report.replica)
        await self.controller.reconcile()

    async def starts_and_fails(self, cause="memory", **fields):
        """A start that fails and is tried again by Serve alone."""
        await self.controller.intake.report(report(**fields))
        await self.controller.intake.report(diagnosed(cause, **fields))

    async def falls(self, times):
        """The group is ready, and fails while it serves: so many times."""
        for _ in range(times):
            await self.ready(1)
            await self.controller.intake.report(report(phase=GroupPhase.FAILED))
        await self.controller.reconcile()

    @property
    def state(self):
        """State of the only deployment."""
        return self.controller.queries.status().deployments[0].state

    @property
    def rungs(self):
        """Rung of each start."""
        return [launch.rung for launch in self.apps.launches]

    async def look(self):
        """One round of the controller's watch over the nodes, due every two seconds."""
        await self.controller.watch.look()

    async def messages(self, kind):
        """Messages of the events of this kind."""
        events = await self.controller.event_log.events(0, "tiny", 0)
        return [event.message for event in events if event.kind == kind]

    async def table(self):
        return await self.controller.gateways.table(known=-1, wait_s=0)


def report(generation=1, **fields):
    fields = {"replica": 0, "phase": GroupPhase.STARTING, "node": "this", "since": 1.0, **fields}
    return GroupReport(deployment="tiny", generation=generation, **fields)


def diagnosed(cause="memory", **fields):
    diagnosis = Diagnosis(cause=Cause(cause), summary="too little memory")
    return report(phase=GroupPhase.FAILED, was_starting=True, diagnosis=diagnosis, **fields)
