from functools import partial

import pytest
from statuses import NOW, deployment, fleet, report

from sparkfleet.controlplane.state.status import OnDemandStatus
from sparkfleet.fleet.planning.step_times import last_start_s
from sparkfleet.fleet.report.on_demand_words import on_demand_words, use_and_command, use_words
from sparkfleet.fleet.report.status_lines import fleet_lines
from sparkfleet.group.report import GroupPhase


def on_demand(*groups, state, detail="", idle=None, **use):
    spec = f'{{"name": "big", "model": "m", "on_demand": true, "idle": {idle or "null"}}}'
    demand = OnDemandStatus(idle_s=idle, **use)
    one = deployment(*groups, state=state, detail=detail)
    return one.model_copy(update={"on_demand": True, "demand": demand, "spec": spec})


def test_what_is_on_demand_has_its_begin_and_its_end_in_words():
    ends = "it ends when another one needs its memory"
    assert (
        on_demand_words(on_demand(state="unloaded"))
        == f"a request or `sparkfleet load big` starts it; {ends}"
    )
    words = on_demand_words(on_demand(state="unloaded", idle=1800))
    assert "it ends after 30 min without a request, or when another one" in words


@pytest.mark.parametrize(
    ("state", "use", "words"),
    [
        ("unloaded", {}, ""),
        ("unloaded", {"start_s": 212.0}, "its last start took 3 min 32 s"),
        ("unloaded", {"waits_s": 42.0, "start_s": 95.0}, "a request has waited 42 s; its last start took 1 min 35 s"),
        ("unloaded", {"waits_s": 2.0, "loaded_by": "me@desk"}, "me@desk has waited 2 s"),
        ("starting", {"waits_s": 42.0, "start_s": 95.0}, "a request has waited 42 s"),
        ("ready", {"in_flight": 2}, "2 requests in flight; ends for another model"),
        ("ready", {"in_flight": 1, "idle": 1800}, "1 request in flight; ends 30 min after it or for another model"),
        ("ready", {"unused_s": 380.0}, "no request for 6 min 20 s; ends for another model"),
        (
            "ready",
            {"unused_s": 380.0, "ends_in_s": 520.0, "idle": 900},
            "no request for 6 min 20 s; ends in 8 min 40 s or for another model",
        ),
        ("ready", {"idle": 900}, "ends 15 min after its last request or for another model"),
        ("failed", {}, "its requests get a 503 until `sparkfleet apply FILE --retry`"),
        ("stopping", {}, ""),
    ],
)  # fmt: skip
def test_each_state_has_its_seconds(state, use, words):
    assert use_words(on_demand(state=state, **use)) == words
    assert len(words) <= 67, "a line of `status` has 80 columns"


def test_one_that_failed_beside_an_older_generation_that_serves_is_used_as_any():
    older = on_demand(report(phase=GroupPhase.READY), state="failed", unused_s=380.0)
    assert use_words(older) == "no request for 6 min 20 s; ends for another model"
    assert "`sparkfleet unload big` ends it now" in use_and_command(older)


def test_what_runs_always_has_no_such_words():
    assert (use_words(deployment(report())), use_and_command(deployment(report()))) == ("", "")


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("unloaded", "`sparkfleet load big` starts it now"),
        ("starting", "`sparkfleet unload big` ends it now"),
        ("failed", "`sparkfleet apply FILE --retry`"),
    ],
)
def test_the_command_that_changes_it_is_named(state, command):
    assert use_and_command(on_demand(state=state)).endswith(command)


def test_status_has_a_line_for_it():
    one = on_demand(
        state="unloaded", detail="it made room for eyes; its next request starts it", start_s=260.0
    )
    shown = list(fleet_lines(fleet(one), (), NOW, partial(last_start_s, {})))
    assert shown[2:] == [
        "big · unloaded · it made room for eyes; its next request starts it",
        "  on demand: its last start took 4 min 20 s",
    ]


def test_a_start_by_a_request_is_expected_to_take_as_long_as_the_last_one():
    """The command line times only the starts that it has begun itself."""
    group = report(phase=GroupPhase.STARTING, since=NOW - 40)
    one = on_demand(group, state="starting", start_s=95.0)
    shown = "\n".join(fleet_lines(fleet(one), (), NOW, partial(last_start_s, {})))
    assert "40 s of about 1 min 35 s (last start)" in shown
