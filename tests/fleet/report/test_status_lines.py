"""The status as its owner reads it: 80 columns, facts first."""

from functools import partial

import pytest
from statuses import NOW, deployment, fleet, holding, report, rung

from sparkfleet.controlplane.state.drained import DrainedGroup
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.fleet.events import FleetStep
from sparkfleet.fleet.planning.step_times import last_start_s, started_by
from sparkfleet.fleet.report.status_lines import fleet_lines, state_words
from sparkfleet.gateway.report import EndpointCertificate, EntryReport, GatewayReport
from sparkfleet.group.report import GroupPhase
from sparkfleet.perf.prediction import DECLARED, Band, Provenance
from sparkfleet.planner.types.plan import GroupPlan
from sparkfleet.units import GIB


def event(kind, ago, message="", subject="big/g3/0"):
    return Event(
        id=1, at=NOW - ago, deployment="big", generation=3, subject=subject, kind=kind, message=message
    )


def lines(one, recent=(), times=None, only=None):
    return list(fleet_lines(one, recent, NOW, partial(last_start_s, times or {}), only))


def test_a_ready_deployment_on_two_nodes():
    nodes = (
        NodeReport(name="spark1", joined=True, memory_total=120 * GIB, memory_available=34 * GIB),
        NodeReport(name="s2", joined=False),
    )
    shown = lines(fleet(deployment(report(running=2, waiting=1)), nodes=nodes))
    assert shown == [
        "fleet home · sparkfleet 0.1.0 · endpoint http://192.168.1.20:8000/v1",
        "",
        "big · ready",
        "  g3/0  spark1+spark2 · TP=2 · vLLM 0.32.0 · NVFP4 · EAGLE3 k=3",
        "        2 of 16 requests running, 1 waiting",
        "        380 ms to the first token, 24.7 tok/s for one user (predicted 21–28)",
        "",
        "nodes",
        "  spark1  joined · 34 of 120 GiB available",
        "  s2      gone: Ray on it does not answer · `sparkfleet doctor s2`",
    ]
    assert all(len(line) <= 80 for line in shown)


def test_a_node_that_does_not_answer_is_named_while_ray_still_counts_it_as_joined():
    """It was `joined · memory not read` for the 55 s that Ray needs to count a node without power as gone."""
    nodes = (NodeReport(name="s1", joined=True), NodeReport(name="s2", joined=True, silent_s=19.4))
    shown = lines(fleet(deployment(report()), nodes=nodes))
    assert shown[-1] == "  s2  no answer for 19 s · `sparkfleet doctor s2`"


def test_every_line_of_a_reason_is_below_its_deployment():
    """The second line of a reason began in the first column, as a deployment of its own."""
    failed = deployment(report(phase=GroupPhase.FAILED, detail="one\ntwo"), state="failed", detail="a\nb")
    shown = lines(fleet(failed))
    assert shown[2:4] == ["big · failed · a", "    b"]
    assert "        failed · one" in shown
    assert "        two" in shown


def test_a_group_below_its_predicted_speed_names_the_command():
    """Its owner had to compare two numbers of each group."""
    words = "        slower than predicted: `sparkfleet doctor` looks for the cause"
    slow = report(measured={"ttft_ms": 900.0, "decode_tps": 12.0})
    assert words in lines(fleet(deployment(slow)))
    assert words not in lines(fleet(deployment(report())))
    assert words not in lines(fleet(deployment(report(measured={}))))


def test_a_group_that_answers_no_chats_is_named_with_the_command():
    words = "        answers no chats: `sparkfleet describe big` has the reason"
    assert words in lines(fleet(deployment(report(chat_refusal="HTTP 400: no template"))))
    assert words not in lines(fleet(deployment(report())))


def test_streams_that_differ_too_much_have_no_rate():
    apart = {"ttft_ms": 24.0, "decode_tps_spread": 161.91, "measured_runs": 3.0}
    shown = lines(fleet(deployment(report(measured=apart))))
    words = "24 ms to the first token, tok/s not known: its 3 streams are 16191% apart"
    assert any(words in line for line in shown)
    assert not any("slower than predicted" in line for line in shown)


def test_the_memory_that_ranks_take_is_beside_the_prediction():
    alone = lines(fleet(deployment(report()), nodes=holding({"spark1": 47 * GIB})))
    assert [line.strip() for line in alone if "memory:" in line] == ["memory: 47 GiB (predicted 40–50)"]
    both = lines(fleet(deployment(report()), nodes=holding({"spark1": 47 * GIB, "s2": 9 * GIB})))
    assert "        memory: 47 GiB on spark1, 9 GiB on s2 (predicted 40–50)" in both
    assert "memory:" not in "".join(lines(fleet(deployment(report()))))


def test_declared_memory_is_no_prediction():
    """A custom workload that declares 2 GiB had `predicted 2–2`."""
    one = deployment(report())
    (group,) = one.plan.groups
    (rung, *lower) = group.ladder
    declared = Band(low=2 * GIB, mid=2 * GIB, high=2 * GIB, provenance=Provenance.MODELLED, basis=DECLARED)
    prediction = rung.prediction.model_copy(update={"memory_bytes_per_rank": declared})
    ladder = (rung.model_copy(update={"prediction": prediction}), *lower)
    plan = one.plan.model_copy(update={"groups": (group.model_copy(update={"ladder": ladder}),)})
    shown = lines(fleet(one.model_copy(update={"plan": plan}), nodes=holding({"spark1": 47 * GIB})))
    assert "        memory: 47 GiB (2 declared in the deployment)" in shown


def test_requests_of_a_custom_workload_are_not_counted():
    shown = lines(fleet(deployment(report(engine="custom", running=1))))
    assert "        1 open connection; its requests are not counted" in shown


def test_requests_that_wait_at_the_gateway_are_in_the_line_of_their_deployment():
    gateway = GatewayReport(
        replica="r", url="http://a", metrics_url="", at=1.0, waiting=10, queued={"big": 3, "other": 7}
    )
    shown = lines(fleet(deployment(report()), gateways=(gateway,)))
    assert "big · ready · 3 requests waiting at the gateway" in shown
    assert "big · ready · 1 request waiting at the gateway" in lines(
        fleet(deployment(report()), gateways=(gateway.model_copy(update={"queued": {"big": 1}}),))
    )


def test_a_drained_group_is_shown_with_the_command_that_brings_it_back():
    mark = DrainedGroup(deployment="big", generation=3, replica=1, who="me", since=0.0)
    status = fleet(deployment(report(), report(1, running=3), planned=2))
    shown = lines(status.model_copy(update={"drained_groups": (mark,)}))
    assert [line.strip() for line in shown if "drained" in line] == [
        "drained: no new requests · `sparkfleet undrain big/g3/1`"
    ]
    assert (
        "3 of 16 requests running"
        in shown[shown.index("        drained: no new requests · `sparkfleet undrain big/g3/1`") - 1]
    )


def test_one_of_two_groups_serves_while_the_other_starts_again():
    starting = report(
        1, GroupPhase.STARTING, step=StartupPhase(phase="loading", share=0.4), ranks=report().ranks
    )
    failed = [
        event("failed", 3500, "The engine exited (code 137).\nlog", "big/g3/1"),
        event("failed", 130, "The engine exited while it was starting.\nmore", "big/g3/1"),
        event("failed", 60, "of another group"),
    ]
    recent = [event("failed", 3700, "long ago", "big/g3/1"), *failed, event("preparing", 125, "", "big/g3/1")]
    one = deployment(report(), starting, planned=2, state="starting", detail="1 of 2 groups serve")
    times = {started_by((one.plan,)): {FleetStep.LOADING: 200.0, FleetStep.COMPILING: 52.0}}
    shown = lines(fleet(one), recent, times)
    assert shown[2] == "big · degraded 1/2 · 1 of 2 groups serve"
    assert shown[-2:] == [
        "        loading 40% · 2 min 5 s of about 4 min 12 s (last start)",
        "        failed 2 times in the last hour, last 2 min 10 s ago: The engine exited while it was starting.",
    ]
    last = event("failed", 120, "B did not start; none of 2 rungs started. " + failed[1].message, "big/g3/1")
    shown_again = lines(fleet(one), [*recent, last], times)
    assert shown_again[-1].startswith(
        "        failed 2 times in the last hour, last 2 min ago: B did not start"
    )
    assert lines(fleet(one), recent, times, only="big") == shown[2:]
    assert lines(fleet(one), recent, times, only="other") == []


def test_a_restart_counts_from_its_own_begin_and_not_from_the_first_one():
    """Ray Serve restarts a group that has served, without a `deploy`: `8 min 11 s of about 2 s`."""
    starting = report(0, GroupPhase.STARTING, ranks=report().ranks)
    first = [event("deploy", 900), event("starting", 895), event("ready", 890)]
    again = [
        event("failed", 40, "it ended"),
        event("starting", 35),
        event("progress", 30, "waiting for memory"),
    ]
    shown = lines(fleet(deployment(starting, state="starting")), [*first, *again, event("starting", 20)])
    assert "        starting the engine · 35 s" in shown


def test_only_a_start_of_what_is_planned_is_compared_with_the_last_one():
    starting = report(0, GroupPhase.STARTING, ranks=report().ranks)
    older = starting.model_copy(update={"generation": 2})
    for other in (older, starting.model_copy(update={"rung": 1})):
        one = deployment(other, state="starting")
        times = {started_by((one.plan,)): {FleetStep.LOADING: 200.0}}
        assert "        starting the engine · 5 s" in lines(fleet(one), times=times)


def test_without_an_earlier_start_no_end_is_promised():
    one = deployment(report(0, GroupPhase.PROBING, ranks=report().ranks), state="starting")
    assert lines(fleet(one))[-1] == "        first token · 5 s"


def predicted(one, tps):
    prediction = one.prediction.model_copy(
        update={"decode_tps_per_request": Band(low=tps, mid=tps, high=tps)}
    )
    return one.model_copy(update={"prediction": prediction})


def test_a_group_that_does_without_a_node_is_named_with_the_command_once_that_is_back():
    first, alone = predicted(rung(), 50.0), predicted(rung(nodes=("spark1",)), 30.0)
    without = "        rung 2 of its ladder: without spark2 (`sparkfleet describe big`)"

    def shown(*ladder, joined):
        moved = deployment(report(rung=1))
        plan = moved.plan.model_copy(update={"groups": (GroupPlan(ladder=ladder),)})
        nodes = (NodeReport(name="spark1", joined=True), NodeReport(name="spark2", joined=joined))
        return lines(fleet(moved.model_copy(update={"plan": plan}), nodes=nodes))[:-4]

    assert shown(first, alone, joined=False)[-1] == without
    command = "        `sparkfleet apply FILE`: predicted 50.0 instead of 30.0 tok/s for one user"
    assert shown(first, alone, joined=True)[-2:] == [without, command]
    assert shown(first, predicted(alone, 50.0), joined=True)[-1] == without, "nothing is gained by a start"


def test_a_lower_rung_and_a_silent_group_and_a_failed_deployment():
    assert "rung 2 of its ladder" in lines(fleet(deployment(report(rung=1))))[-1]
    assert lines(fleet(deployment(report(silent_s=40.0))))[-1] == "        no report for 40 s; it was ready"
    ended = deployment(report(0, GroupPhase.FAILED, silent_s=40.0))
    assert lines(fleet(ended))[-1] == "        failed, and ended; nothing has started since"
    failed = deployment(
        report(0, GroupPhase.FAILED, detail="out of memory"), state="failed", detail="no rung"
    )
    assert lines(fleet(failed))[2:] == [
        "big · failed · no rung",
        "  g3/0  spark1+spark2 · TP=2 · vLLM 0.32.0 · NVFP4 · EAGLE3 k=3",
        "        failed · out of memory",
        "  `sparkfleet describe big` has the reason of each attempt.",
    ]


def test_a_group_of_an_older_plan_is_shown_with_what_is_known():
    one = deployment(report(generation=2, measured={}), state="updating", detail="2 serves until 3 is ready")
    assert lines(fleet(one))[3:] == ["  g2/0  spark1 · vLLM 0.32.0", "        0 requests running, 0 waiting"]


@pytest.mark.parametrize(
    ("state", "ready", "planned", "words"),
    [("ready", 2, 2, "ready"), ("ready", 1, 2, "degraded 1/2"), ("starting", 0, 2, "starting"),
     ("failed", 1, 2, "failed"), ("updating", 1, 2, "updating")],
)  # fmt: skip
def test_degraded_is_what_serves_with_fewer_groups(state, ready, planned, words):
    assert state_words(deployment(*map(report, range(ready)), planned=planned, state=state)) == words


def test_nothing_is_deployed():
    assert lines(fleet())[-1].startswith("Nothing is deployed. `sparkfleet apply")


def behind_tls(days, authority="", trouble=""):
    certificate = EndpointCertificate(expires_at=NOW + days * 86400, sha256="ab" * 32, authority=authority)
    report = GatewayReport(
        replica="r",
        url="https://10.0.0.1:8000",
        metrics_url="",
        at=NOW,
        certificate=certificate,
        trouble=trouble,
    )
    return list(fleet_lines(fleet().model_copy(update={"gateways": (report,)}), (), NOW, lambda _: None))


def test_the_status_has_the_end_of_the_certificate_and_the_trouble_with_newer_files():
    assert behind_tls(100.2)[1] == "certificate of the endpoint (given): valid until 2027-02-28, 100 days"
    assert behind_tls(9, "PEM")[1].startswith(
        "certificate of the endpoint (of the fleet's own authority): valid"
    )
    expired = behind_tls(-2, trouble="cert.pem cannot be used")
    assert "expired on 2026-11-18: clients refuse it" in expired[1]
    assert expired[2] == "gateway: cert.pem cannot be used"


def test_the_gateways_metrics_have_an_address_as_far_as_it_is_known():
    def shown(url):
        gateway = GatewayReport(replica="r", url="http://10.0.0.1:8000", metrics_url=url, at=NOW)
        return lines(fleet(gateways=(gateway,)))[1:3]

    address = "http://127.0.0.1:41235/metrics"
    assert shown(address) == [f"metrics {address} (on the head)", ""]
    assert shown("") == ["", lines(fleet())[-1]]


def test_further_addresses_of_the_endpoint_are_shown_with_their_state():
    entries = (
        EntryReport(node="s2", url="http://192.168.1.21:8000/v1", listening=True, connections=1),
        EntryReport(node="s3", url="http://192.168.1.22:8000/v1", listening=True, trouble="no way"),
    )
    assert lines(fleet(entries=entries))[1:3] == [
        "endpoint on s2: http://192.168.1.21:8000/v1 · 1 connection",
        "endpoint on s3: http://192.168.1.22:8000/v1 · not reached",
    ]


def test_a_fleet_that_a_down_has_begun_to_stop_is_named_with_both_ways_on():
    """After Ctrl-C in `down` it was `Nothing is deployed`."""
    shown = lines(fleet().model_copy(update={"paused": True}))
    assert shown[-2:] == [
        "The fleet is being taken down, or a `sparkfleet down` did not end: nothing that was applied runs.",
        "`sparkfleet up` starts all of it again, `sparkfleet down` stops the rest.",
    ]


def test_the_first_start_is_compared_with_its_prediction():
    starting = report(0, GroupPhase.STARTING, ranks=report().ranks)
    one = deployment(starting, state="starting")
    first = one.plan.groups[0].choice
    known = first.model_copy(
        update={"prediction": first.prediction.model_copy(update={"weights_bytes": 130 * 10**9})}
    )
    plan = one.plan.model_copy(update={"groups": (GroupPlan(ladder=(known,)),)})
    shown = lines(fleet(one.model_copy(update={"plan": plan})))
    assert "        starting the engine · 5 s of about 10 min (predicted)" in shown
