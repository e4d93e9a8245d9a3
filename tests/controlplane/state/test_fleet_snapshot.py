"""The gateways' table: its groups and their entries."""

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.fleet_snapshot import FleetSnapshot
from sparkfleet.controlplane.state.status import App, app_name
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry
from sparkfleet.group.group_name import name_of
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.perf.prediction import Band


def wanted(*visions, generation=2, **fields):
    """A deployment with a group for each of these, which sees or does not."""
    made = plan(groups=len(visions), **fields)
    groups = tuple(
        group.model_copy(update={"vision": sees, "family": "qwen3"})
        for group, sees in zip(made.groups, visions, strict=True)
    )
    made = made.model_copy(update={"groups": groups})
    return Desired(spec=deployment(), plan=made, generation=generation, who="me", since=0.0)


def running(generation, replica=0, rung=0, phase=GroupPhase.READY):
    """An application, and its group's report."""
    app = App(deployment="tiny", generation=generation, replica=replica, status="running")
    said = GroupReport(
        deployment="tiny",
        generation=generation,
        replica=replica,
        phase=phase,
        node="this",
        since=1.0,
        rung=rung,
    )
    return app, said


def entry(desired, *there, told=(), without=None):
    apps, reports = [app for app, _ in there], [said for _, said in there]
    view = FleetSnapshot({"tiny": desired}, apps, reports, reports, (), {group.app: group for group in told})
    return view.models(without)["tiny"]


def test_the_gateway_names_a_group_as_other_verbs_do():
    group = ("my--model", 12, 3)
    assert GroupEntry(app=app_name(*group)).name == name_of(group) == "my--model/g12/3"
    assert GroupEntry(app="outside").name == "outside"


def test_every_planned_group_is_there_with_what_it_can_do():
    found = entry(wanted(False, True, None), running(2, 1))
    assert found.state == "ready"
    assert [(group.app, group.ready, group.vision) for group in found.groups] == [
        ("tiny--g2-0", False, False),
        ("tiny--g2-1", True, True),
        ("tiny--g2-2", False, None),
    ]
    assert {(group.tools, group.context, group.concurrency) for group in found.groups} == {(False, 512, 4)}
    assert found.apps == ("tiny--g2-1",)


def test_before_any_is_ready_they_are_there_too():
    found = entry(wanted(True, False), running(2, phase=GroupPhase.STARTING))
    assert found.state == "starting"
    assert [(group.ready, group.vision) for group in found.groups] == [(False, True), (False, False)]


def test_older_groups_serve_along_until_every_desired_one_does():
    """A roll of two replicas had half the capacity as soon as the first new one was ready."""
    old, first, second = running(1, 1), running(2), running(2, 1)
    assert entry(wanted(True, False), old, first).apps == ("tiny--g2-0", "tiny--g1-1")
    assert entry(wanted(True, False), old, first, second).apps == ("tiny--g2-0", "tiny--g2-1")


def test_a_generation_that_serves_again_has_what_its_plan_has():
    """Its entry was dropped from the table when it ended for the newer one."""
    served = wanted(True, generation=1)
    old, said = running(1)
    view = FleetSnapshot(
        {"tiny": wanted(False)}, [old], [said], [said], ("tiny",), last_served={"tiny": served}
    )
    found = view.models()["tiny"]
    assert (found.state, found.apps, found.groups[-1].vision, found.context) == (
        "ready",
        ("tiny--g1-0",),
        True,
        512,
    )


def test_before_it_starts_again_that_is_named():
    view = FleetSnapshot({"tiny": wanted(True)}, (), (), (), ("tiny",), returning={"tiny": 1})
    (found,) = view.deployments()
    assert found.detail == (
        "its engine did not start; generation 1, which served before, starts again;"
        " `sparkfleet describe tiny` shows the reason"
    )


@pytest.mark.parametrize(
    ("failed", "state", "words"),
    [
        ((), "updating", "1 of 2 groups serve; g1/1 of the generation before until the next one is ready"),
        (
            ("tiny",),
            "failed",
            "generation 2 did not start; 1 of 2 groups serve, and g1/1 of the generation before",
        ),
    ],
)
def test_the_state_of_a_deployment_in_the_middle_of_a_roll(failed, state, words):
    apps, reports = zip(running(1, 1), running(2), strict=True)
    (found,) = FleetSnapshot({"tiny": wanted(True, False)}, apps, reports, reports, failed).deployments()
    assert (found.state, found.detail) == (state, words)


def test_a_group_that_has_to_end_first_is_not_called_the_one_that_starts():
    """Clients got "is starting: its group is ready" while the old generation gave its port or its memory back."""
    old, said = running(1, phase=GroupPhase.READY)
    ending = old.model_copy(update={"status": "retiring"}), said
    assert entry(wanted(True), ending).detail == "generation 1 ends first"
    assert entry(wanted(True), running(1), without=("tiny", 1, 0)).detail == "generation 1 ends first"
    started = running(2, phase=GroupPhase.STARTING)
    assert entry(wanted(True), ending, started).detail == "its group is starting"
    assert entry(wanted(True), running(2), without=("tiny", 2, 0)).detail == "its group is being placed"


def test_a_group_further_down_its_ladder_can_do_what_that_rung_can():
    desired = wanted(True, rungs=2)
    (group,) = desired.plan.groups
    lower = group.ladder[1].candidate.model_copy(update={"context": 128})
    ladder = (group.ladder[0], group.ladder[1].model_copy(update={"candidate": lower}))
    made = desired.plan.model_copy(update={"groups": (group.model_copy(update={"ladder": ladder}),)})
    found = entry(desired.model_copy(update={"plan": made}), running(2, rung=1))
    assert [group.context for group in found.groups] == [128]
    assert found.context == 128


def test_a_group_has_the_speed_that_its_start_was_measured_at():
    desired = wanted(True)
    (group,) = desired.plan.groups
    band = Band(low=10.0, mid=20.0, high=30.0)
    prediction = group.choice.prediction.model_copy(update={"check_decode_tps": band})
    group = group.model_copy(update={"ladder": (group.choice.model_copy(update={"prediction": prediction}),)})
    desired = desired.model_copy(update={"plan": desired.plan.model_copy(update={"groups": (group,)})})
    app, report = running(2)
    for measured, ratio in (({}, None), ({"decode_tps": 15.0}, 0.75)):
        there = app, report.model_copy(update={"measured": measured})
        assert [group.measured for group in entry(desired, there).groups] == [ratio]


def test_the_longest_context_is_the_models():
    desired = wanted(True, True)
    short, long = desired.plan.groups
    candidate = long.choice.candidate.model_copy(update={"context": 4096})
    long = long.model_copy(update={"ladder": (long.choice.model_copy(update={"candidate": candidate}),)})
    made = desired.plan.model_copy(update={"groups": (short, long)})
    assert entry(desired.model_copy(update={"plan": made})).context == 4096


@pytest.mark.parametrize("known", [True, False])
def test_of_an_older_generation_holds_what_was_told_of_it(known):
    """Its plan is no longer kept: its entry in the last table is all that is known."""
    old = GroupEntry(app="tiny--g1-0", vision=True, context=9000, concurrency=2)
    found = entry(
        wanted(False), running(1), running(2, phase=GroupPhase.STARTING), told=[old] if known else []
    )
    assert found.state == "ready"
    assert found.apps == ("tiny--g1-0",)
    assert found.groups[1] == (old if known else GroupEntry(app="tiny--g1-0"))
    assert found.groups[0].app == "tiny--g2-0"


def test_what_was_told_is_not_believed_of_what_is_wanted_now():
    found = entry(wanted(False), running(2), told=[GroupEntry(app="tiny--g2-0", vision=True, ready=False)])
    assert [(group.ready, group.vision) for group in found.groups] == [(True, False)]


def test_what_is_about_to_go_is_not_ready():
    found = entry(wanted(True), running(1), running(2), without=("tiny", 2, 0))
    assert found.apps == ("tiny--g1-0",)


def test_endpoints_outside_are_no_groups_and_are_named_while_nothing_serves():
    given = (
        {"url": "http://nas:8080/v1", "model": "q", "key_file": "/etc/key", "when": "busy", "context": 4096},
    )
    desired = wanted(True).model_copy(update={"spec": deployment(external=given)})
    found = entry(desired, running(2))
    assert [group.app for group in found.groups] == ["tiny--g2-0"] == list(found.apps)
    (outside,) = found.external
    assert (outside.app, outside.context, outside.vision) == ("external/tiny/0", 4096, None)
    assert outside.external == ExternalAddress(
        url="http://nas:8080/v1", model="q", key_file="/etc/key", when="busy"
    )
    app, said = running(2, phase=GroupPhase.STARTING)
    (shown,) = FleetSnapshot({"tiny": desired}, [app], [said], [said], ()).deployments()
    assert shown.state == "starting"
    assert shown.detail.endswith("; meanwhile requests go to http://nas:8080/v1")
