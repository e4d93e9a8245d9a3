"""Applying as another program does it: values in, values and events out, nothing printed and nobody asked."""

import pytest
from control_values import plan
from open_client import OpenClient
from statuses import fleet

from sparkfleet.controlplane.api.api_models import API_VERSION, ApplyRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.api_keys import KeyRow
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import DeploymentStatus, NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import ControlError, Infeasible, SpecError
from sparkfleet.fleet.deployments.apply import carry_out, create_first_key, prepare_apply
from sparkfleet.fleet.deployments.generations import prepare_restart, prepare_rollback, prepare_scale
from sparkfleet.fleet.deployments.status import find_now
from sparkfleet.fleet.events import FleetStep, KeyCreated, StepEnded, StepRunning
from sparkfleet.fleet.planning.plan import fleet_of, plan_deployments
from sparkfleet.fleet.planning.step_times import load_step_times
from sparkfleet.fleet.session import Session
from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.hostfacts.node import InstalledEngine, NodeFacts, Processors, UnifiedMemory
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Gateway

TINY = Deployment(name="tiny", model="builtin:tiny", context=512, concurrency=4)
ADDRESS = HeadAddress(
    ray="127.0.0.2:1", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000
)
HERE = NodeFacts(
    name="this",
    memory=UnifiedMemory(total=24 << 30, available=20 << 30),
    processors=Processors(count=2, machine="x86_64"),
    gpu=None,
    engines={"vllm": InstalledEngine(python="python3", version="0.32.0+cpu")},
)


class Controller(OpenClient):
    """One that has a deployment ready as soon as it is asked for, and then remembers it."""

    def __init__(self, state="ready"):
        self.address = ADDRESS
        self.api = API_VERSION
        self.version = "0"
        self.asked = []
        self.made = []
        self.nodes = ()
        self.listening = None
        self._state = state
        self._looks = 0

    async def fleet(self):
        self._looks += 1
        return fleet(*map(self._deployed, self.asked), nodes=self.nodes, listening=self.listening)

    def _deployed(self, request):
        return DeploymentStatus(
            name=request.spec.name,
            generation=1,
            state="starting" if self._looks < 2 else self._state,
            detail="",
            who="",
            since=0.0,
            plan=request.plan,
            groups=(),
            spec=request.spec.model_dump_json(),
        )

    def require_same_api(self):
        FleetClient.require_same_api(self)

    async def sealed(self, specs):
        return tuple(specs)

    async def apply(self, request):
        self.asked.append(request)
        return 1, True

    async def events(self, after, deployment=None, wait_s=0):
        return []

    async def keys(self):
        return self.made

    async def create_key(self, name):
        self.made.append(KeyRow(id="1", name=name, created=0.0))
        return {"id": "1", "name": name, "key": "sk-x"}


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def session(tmp_path, monkeypatch, controller):
    """A session with a fleet of this machine, down until it is brought up."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    session = Session(file)
    up = []

    async def surveyed(inventory, channels, without=()):
        return (HERE,)

    async def find_controller():
        return controller if up else None

    async def bring_up(requests, on_event):
        on_event(StepRunning(step=FleetStep.STARTING_RAY))
        controller.asked += requests
        up.append(True)
        return controller

    monkeypatch.setattr("sparkfleet.fleet.planning.plan.collect_facts", surveyed)
    monkeypatch.setattr(session, "find_controller", find_controller)
    monkeypatch.setattr(session.lifecycle, "bring_up", bring_up)
    return session


async def test_a_fleet_that_is_down_is_brought_up_and_the_second_time_nothing_changes(
    session, controller, capsys
):
    events = []
    prepared = await prepare_apply(session, [TINY])
    assert not prepared.changes_nothing
    assert [one.change.verb for one in prepared.planned.decision.pending] == ["start"]
    applied = await carry_out(session, prepared, events.append)
    assert (applied.failed, applied.settled["tiny"].state) == (False, "ready")
    assert [one.step for one in events if isinstance(one, StepEnded)] == list(applied.times)
    assert [one.key for one in events if isinstance(one, KeyCreated)] == ["sk-x"]
    known = load_step_times(FleetPaths.default("home").step_times)
    assert FleetStep.STARTING_RAY in known["fleet"]
    controller.asked[:] = controller.asked[:1]
    assert (await prepare_apply(session, [TINY])).changes_nothing
    assert capsys.readouterr() == ("", "")


async def test_the_first_key_is_created_once_also_if_the_apply_before_was_interrupted(controller):
    """It had stored the deployment: the next one changed nothing, and nobody had a key."""
    events = []
    for _ in range(2):
        await create_first_key(controller, events.append)
    assert [one.key for one in events if isinstance(one, KeyCreated)] == ["sk-x"]


async def test_nothing_is_asked_for_before_it_is_carried_out(session, controller):
    await prepare_apply(session, [TINY])
    assert controller.asked == controller.made == []


async def test_what_fails_is_told_and_no_measure_of_the_next_start(session, controller):
    controller._state = "failed"
    applied = await carry_out(session, await prepare_apply(session, [TINY]))
    assert applied.failed
    assert load_step_times(FleetPaths.default("home").step_times) == {}


async def test_of_an_infeasible_plan_nothing_is_carried_out(session, controller, monkeypatch):
    async def never(*_, **__):
        raise AssertionError("weights were brought")

    monkeypatch.setattr("sparkfleet.fleet.storage.stage.stage_plans", never)
    large = Deployment(name="large", model="builtin:tiny", replicas=99)
    prepared = await prepare_apply(session, [TINY, large])
    if not prepared.planned.decision.plan.refused:
        pytest.fail("99 groups fit one node")
    with pytest.raises(Infeasible, match="this fleet cannot serve large"):
        await carry_out(session, prepared)
    assert controller.asked == []


async def test_a_plan_names_the_generation_that_it_was_made_from(session, controller):
    prepared = await prepare_apply(session, [TINY])
    assert prepared.planned.base_of("tiny") == 0, "no fleet has been here"
    await carry_out(session, prepared)
    assert controller.asked[0].base == 0
    changed = TINY.model_copy(update={"concurrency": 8})
    await carry_out(session, await prepare_apply(session, [changed]))
    assert controller.asked[-1].base == 1


async def test_a_fleet_that_is_down_has_the_generations_of_its_store(session, controller):
    prepared = await prepare_apply(session, [TINY])
    paths = FleetPaths.default("home")
    paths.create()
    (plan,) = prepared.planned.decision.plan.deployments
    store = Store(paths.database)
    store.deployments.put(TINY, plan, "anna")
    store.close()
    assert (await prepare_apply(session, [TINY])).planned.base_of("tiny") == 1
    paths.database.write_bytes(b"garbage")
    assert (await prepare_apply(session, [TINY])).planned.base_of("tiny") is None, "unreadable is not none"


@pytest.mark.parametrize(("theirs", "remedy"), [(API_VERSION + 1, "newer"), (0, "`sparkfleet upgrade`")])
async def test_a_controller_with_another_api_stops_an_apply_before_it_is_asked_for(
    session, controller, theirs, remedy
):
    await carry_out(session, await prepare_apply(session, [TINY]))
    controller.api, controller.version = theirs, "9.9"
    asked = len(controller.asked)
    with pytest.raises(ControlError, match=f"sparkfleet 9.9 with version {theirs} of its API") as caught:
        await prepare_apply(session, [TINY.model_copy(update={"concurrency": 8})])
    assert remedy in caught.value.do
    assert len(controller.asked) == asked


async def test_nothing_is_applied_to_a_fleet_that_a_down_has_begun_to_stop(session, controller, monkeypatch):
    """It was stored, nothing started, and the wait for it ended with "was deleted"."""
    await carry_out(session, await prepare_apply(session, [TINY]))
    status = await controller.fleet()

    async def stopped():
        return status.model_copy(update={"paused": True, "deployments": ()})

    monkeypatch.setattr(controller, "fleet", stopped)
    with pytest.raises(ControlError, match="did not end") as caught:
        await prepare_apply(session, [TINY.model_copy(update={"concurrency": 8})])
    assert "`sparkfleet up` starts all of it again" in caught.value.do
    with pytest.raises(ControlError, match="did not end"):
        await find_now(controller, "tiny")


async def test_a_plan_on_a_node_that_the_running_fleet_lacks_stops_an_apply(session, controller):
    """It was applied, its group was never started, and the remedy was to apply it again."""
    await carry_out(session, await prepare_apply(session, [TINY]))
    changed = TINY.model_copy(update={"context": 256})
    controller.nodes = (NodeReport(name="this", joined=True),)
    assert not (await prepare_apply(session, [changed])).changes_nothing
    controller.nodes = (NodeReport(name="former", joined=True),)
    with pytest.raises(ControlError, match="started with former; the inventory has this"):
        await prepare_apply(session, [changed])
    with pytest.raises(ControlError, match="started with former; the inventory has this"):
        await prepare_restart(session, "tiny")


async def test_a_stored_plan_that_runs_code_of_a_checkpoint_without_a_commit_is_not_started_again(
    session, controller
):
    """A release before `trust_remote_code` accepted the flag among the arguments."""
    await carry_out(session, await prepare_apply(session, [TINY]))
    old = TINY.model_copy(update={"engine_args": ("--trust-remote-code",)})
    controller.asked[:] = [one.model_copy(update={"spec": old}) for one in controller.asked]
    with pytest.raises(SpecError, match="tiny: --trust-remote-code runs") as caught:
        await prepare_restart(session, "tiny")
    assert "`sparkfleet apply` it" in caught.value.do
    (refused,) = (await prepare_scale(session, "tiny", 2)).planned.decision.plan.refused
    assert refused.rejected[0].reason.startswith("--trust-remote-code runs")
    assert "set `trust_remote_code: true`" in refused.nearest[0]


async def test_nodes_without_the_firewall_are_exposed_unless_the_inventory_accepts_it(session):
    assert (await fleet_of(session)).exposed == ("this",)
    session.access.inventory = session.inventory.model_copy(update={"lan_rendezvous": True})
    assert (await fleet_of(session)).exposed == ()


@pytest.mark.parametrize("assumed", [None, "dgx-spark"])
async def test_a_plan_knows_the_ports_of_the_gateway(session, assumed):
    assert (await fleet_of(session, assumed)).endpoint_ports == (("this", 8000),)


async def test_a_plan_knows_the_port_that_a_gateway_at_any_port_has(session, controller):
    """`port: 0`: a workload was planned on the endpoint's port, waited for it, and failed after a minute."""
    session.access.inventory = session.inventory.model_copy(update={"gateway": Gateway(port=0)})
    controller.listening = GatewayListening(host="127.0.0.1", port=25938, max_body_bytes=1 << 20)
    await carry_out(session, await prepare_apply(session, [TINY]))  # brings the fleet up
    found = await plan_deployments(session, [TINY])
    assert found.fleet.endpoint_ports == (("this", 25938),)


async def test_a_rollback_to_a_port_that_another_deployment_has_now_is_refused_with_its_name(
    session, controller, monkeypatch
):
    """It was applied, and failed at its start."""

    def listening(name, port):
        custom = {"engine": "custom", "command": ("serve",), "port": port, "memory": "1 GiB"}
        return Deployment(name=name, model=f"org/{name}", **custom), plan(name, engine="custom", port=port)

    async def up():
        return controller

    async def history(name):
        spec, planned = listening(name, 5005)
        return (Desired(generation=0, spec=spec, plan=planned, who="me", since=0.0),)

    monkeypatch.setattr(session, "find_controller", up)
    monkeypatch.setattr(controller, "history", history, raising=False)
    monkeypatch.setattr(controller, "again", lambda: controller, raising=False)
    spec, planned = listening("tts", 5006)
    controller.asked.append(ApplyRequest(spec=spec, plan=planned, who="me"))
    assert (await prepare_rollback(session, "stt", None)).planned.decision.pending
    spec, planned = listening("tts", 5005)
    controller.asked[:] = [ApplyRequest(spec=spec, plan=planned, who="me")]
    with pytest.raises(ControlError, match="tts has port 5005 of this, which this generation of stt needs"):
        await prepare_rollback(session, "stt", None)


async def test_a_rollback_to_the_port_of_the_gateway_is_refused(session, controller, monkeypatch):
    async def up():
        return controller

    async def history(name):
        spec = Deployment(
            name=name, model=f"org/{name}", engine="custom", command=("serve",), port=8000, memory="1 GiB"
        )
        planned = plan(name, engine="custom", port=8000)
        return (Desired(generation=0, spec=spec, plan=planned, who="me", since=0.0),)

    monkeypatch.setattr(session, "find_controller", up)
    monkeypatch.setattr(controller, "history", history, raising=False)
    monkeypatch.setattr(controller, "again", lambda: controller, raising=False)
    with pytest.raises(ControlError, match="The gateway has port 8000 of this, which this generation of stt"):
        await prepare_rollback(session, "stt", None)
