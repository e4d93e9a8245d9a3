from statuses import deployment, fleet, holding, report

from sparkfleet.controlplane.state.drained import DrainedGroup, DrainedNode
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.errors import UnreachableError
from sparkfleet.fleet.deployments.status import FleetCondition, FleetOverview
from sparkfleet.fleet.report.live_view import LiveReadings, bar, sparkline
from sparkfleet.gateway.report import EntryReport, GatewayReport
from sparkfleet.group.report import GroupPhase
from sparkfleet.hostfacts.gpu import GpuState
from sparkfleet.hostfacts.memory import MemoryMap
from sparkfleet.telemetry.node_readings import NodeReadings, RailReading, SlowReadings
from sparkfleet.units import GIB


def up(*deployments, **fields):
    status = fleet(*deployments).model_copy(update=fields)
    return FleetOverview(FleetCondition.UP, status)


def counted(tokens, **fields):
    return up(deployment(report(tokens=tokens, **fields)))


def test_a_rate_is_that_of_some_seconds_as_groups_report_every_few():
    readings = LiveReadings()
    assert readings.add(counted(1000.0), 10.0).groups[0].tps is None
    assert readings.add(counted(1000.0), 11.0).groups[0].tps == 0
    assert readings.add(counted(1100.0), 12.0).groups[0].tps == 50
    for second in range(13, 18):
        view = readings.add(counted(1100.0), float(second))
    assert view.groups[0].tps == 100 / 6  # over the last six seconds, the step among them
    assert readings.add(counted(1100.0), 18.5).groups[0].tps == 0
    assert view.tps == 100 / 6
    assert [round(one) for one in view.groups[0].history[:3]] == [0, 0, 50]


def test_another_engine_counts_anew_and_is_no_negative_rate():
    readings = LiveReadings()
    readings.add(counted(1000.0), 0.0)
    readings.add(counted(1200.0), 1.0)
    assert readings.add(counted(10.0), 2.0).groups[0].tps is None
    assert readings.add(counted(40.0), 3.0).groups[0].tps == 30


def test_a_group_says_what_it_does_and_how_fast_it_was_predicted():
    one = deployment(
        report(0, running=2, waiting=1, drafted=200.0, accepted=150.0),
        report(1, GroupPhase.STARTING, detail="waits for memory"),
        planned=2,
    )
    view = LiveReadings().add(up(one), 0.0)
    ready, starting = view.groups
    assert (ready.where, ready.running, ready.slots, ready.waiting) == ("spark1+spark2 · TP=2", 2, 16, 1)
    assert (ready.acceptance, ready.measured_tps, ready.predicted) == (0.75, 24.74, "21–28")
    assert (ready.tps, view.tps) == (None, None)
    assert (starting.state, starting.detail) == ("starting", "waits for memory")
    assert (view.running, view.waiting) == (2, 1)


def test_open_connections_of_a_custom_workload_are_not_counted_as_requests():
    groups = (report(running=2), report(1, engine="custom", running=5))
    view = LiveReadings().add(up(deployment(*groups, planned=2)), 0.0)
    assert [(one.running, one.counts_connections) for one in view.groups] == [(2, False), (5, True)]
    assert view.running == 2


def test_requests_that_wait_at_the_gateway_are_counted_with_those_in_engines():
    gateway = GatewayReport(replica="r", url="http://a", metrics_url="", at=1.0, waiting=40)
    found = up(deployment(report(running=16, waiting=1)), gateways=(gateway,))
    assert LiveReadings().add(found, 0.0).waiting == 41


def test_those_of_a_deployment_are_in_the_row_of_its_first_group():
    queued = {"big": 3, "other": 7}
    gateway = GatewayReport(replica="r", url="http://a", metrics_url="", at=1.0, waiting=10, queued=queued)
    found = up(deployment(report(waiting=1), report(1, waiting=2), planned=2), gateways=(gateway, gateway))
    assert [row.waiting for row in LiveReadings().add(found, 0.0).groups] == [7, 2]


def test_the_memory_of_a_group_is_that_of_its_fullest_rank():
    found = up(deployment(report()), nodes=holding({"spark1": 47 * GIB, "s2": 46 * GIB}))
    (row,) = LiveReadings().add(found, 0.0).groups
    assert row.memory == 47 * GIB
    assert LiveReadings().add(up(deployment(report())), 0.0).groups[0].memory is None


def test_a_deployment_without_a_group_has_a_row():
    (row,) = LiveReadings().add(up(deployment(state="failed", detail="no rung is left")), 0.0).groups
    assert (row.name, row.state, row.detail) == ("big", "failed", "no rung is left")


def test_nodes_have_their_memory_their_gpu_and_their_rails():
    gpu = GpuState(name="NVIDIA GB10", driver="580", utilization_percent=97, power_w=61.0, temperature_c=66)
    readings = NodeReadings(
        memory=MemoryMap.model_construct(),
        rails=(RailReading(netdev="a", up=True), RailReading(netdev="b", up=False)),
        slow=SlowReadings(gpus=(gpu,)),
    )
    nodes = (
        NodeReport(
            name="s1", joined=True, memory_total=120 * GIB, memory_available=30 * GIB, readings=readings
        ),
        NodeReport(name="s2", joined=True),
        NodeReport(name="s3", joined=False),
        NodeReport(name="s4", joined=True, silent_s=19.0),
    )
    drained = (DrainedNode(node="s2", who="me", since=0.0),)
    first, second, third, fourth = LiveReadings().add(up(nodes=nodes, drained=drained), 0.0).nodes
    assert (first.memory_used, first.busy, first.power_w, first.temperature_c) == (0.75, 0.97, 61.0, 66)
    assert (first.rails_up, first.rails) == (1, 2)
    assert (second.state, second.memory_used, third.state) == ("drained", None, "gone")
    assert fourth.state == "silent"


def test_a_node_has_its_address_of_the_endpoint():
    nodes = tuple(NodeReport(name=name, joined=True) for name in ("s1", "s2", "s3"))
    entries = (
        EntryReport(node="s2", url="http://10.0.0.2:8000/v1", listening=True, connections=1),
        EntryReport(node="s3", url="http://10.0.0.3:8000/v1", listening=True, trouble="no way"),
    )
    rows = LiveReadings().add(up(nodes=nodes, entries=entries), 0.0).nodes
    assert [(row.entry, row.reached) for row in rows] == [
        ("", True),
        ("http://10.0.0.2:8000/v1 · 1 connection", True),
        ("http://10.0.0.3:8000/v1 · not reached", False),
    ]


def test_troubles_of_gateways_are_named():
    gateway = GatewayReport(replica="r", url="http://a", metrics_url="", at=1.0, trouble="the port is taken")
    view = LiveReadings().add(up(gateways=(gateway,), warnings=("a full disk",)), 0.0)
    assert view.trouble == ("a full disk", "gateway: the port is taken")


def test_a_drained_group_is_named_so():
    mark = DrainedGroup(deployment="big", generation=3, replica=0, who="me", since=0.0)
    found = up(deployment(report(running=1), report(1), planned=2), drained_groups=(mark,))
    assert [group.state for group in LiveReadings().add(found, 0.0).groups] == ["drained", "ready"]


def test_what_was_read_last_stays_with_its_age_if_the_controller_does_not_answer():
    readings = LiveReadings()
    readings.add(counted(5.0), 10.0)
    error = UnreachableError("spark1 does not answer.", do="Look at it.")
    gone = FleetOverview(FleetCondition.UNREACHABLE, fleet(), error)
    view = readings.add(gone, 17.0)
    assert (view.condition, view.trouble, view.age_s) == (
        "unreachable",
        ("spark1 does not answer.", "Look at it."),
        7.0,
    )
    assert [row.name for row in view.groups] == ["big/g3/0"]
    assert LiveReadings().add(gone, 17.0).groups == ()
    assert readings.add(counted(5.0), 18.0).trouble == ()
    assert "`sparkfleet up`" in readings.add(FleetOverview(FleetCondition.DOWN, fleet()), 19.0).trouble[0]


def test_blocks():
    assert sparkline((0.0, 0.0), 5) == "▁▁"
    assert sparkline((9.0, 1.0, 4.0, 8.0), 3) == "▂▅█"
    assert sparkline((), 3) == ""
    assert (bar(0.5, 4), bar(2.0, 3), bar(-1.0, 2)) == ("██░░", "███", "░░")
