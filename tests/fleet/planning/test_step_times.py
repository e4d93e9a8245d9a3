import asyncio

import pytest
from control_values import plan

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.events import (
    BytesMoving,
    ExpectedTime,
    FactFound,
    FleetEvent,
    FleetStep,
    StepEnded,
    StepRunning,
)
from sparkfleet.fleet.planning.step_times import (
    FLEET,
    StepTimer,
    all_ready,
    expected_times,
    last_start_s,
    load_step_times,
    save_step_times,
    started_by,
)
from sparkfleet.staging.progress import TransferProgress

LOADING, WARMING, RAY = FleetStep.LOADING, FleetStep.WARMING_UP, FleetStep.STARTING_RAY
TINY = "builtin:tiny on vllm, TP=1"


def test_a_step_ends_with_the_first_event_of_another_and_the_last_with_the_timer():
    now, seen = [0.0], []
    expected = ExpectedTime(seconds=7, measured=True)
    with StepTimer(seen.append, {LOADING: expected}, lambda: now[0]) as timer:
        for at, event in [
            (0.0, StepRunning(step=LOADING)),
            (2.0, FactFound(line="x")),
            (4.0, StepRunning(step=LOADING, detail="40%")),
            (5.0, StepRunning(step=WARMING)),
            (8.0, StepRunning(step=LOADING)),
        ]:
            now[0] = at
            timer(event)
        now[0] = 9.0
    assert [one for one in seen if isinstance(one, StepEnded)] == [
        StepEnded(step=LOADING, seconds=5.0),
        StepEnded(step=WARMING, seconds=3.0),
        StepEnded(step=LOADING, seconds=1.0),
    ]
    assert [one.expected for one in seen if isinstance(one, StepRunning)] == [
        expected,
        expected,
        None,
        expected,
    ]
    assert timer.times == {LOADING: 6.0, WARMING: 3.0}


def test_a_step_in_which_a_start_failed_is_marked():
    seen = []
    failed = Event(
        id=1, at=1.0, deployment="m", generation=1, subject="m/g1/0", kind="failed", message="it exited"
    )
    with StepTimer(seen.append, {}, lambda: 0.0) as timer:
        timer(StepRunning(step=WARMING))
        timer(FleetEvent(event=failed))
        timer(StepRunning(step=LOADING))
    assert [one for one in seen if isinstance(one, StepEnded)] == [
        StepEnded(step=WARMING, seconds=0.0, failed=True),
        StepEnded(step=LOADING, seconds=0.0),
    ]
    assert seen.index(FleetEvent(event=failed)) > seen.index(
        StepEnded(step=WARMING, seconds=0.0, failed=True)
    )


def test_a_step_that_an_error_of_the_command_ends_is_marked():
    seen = []

    def command():
        with StepTimer(seen.append, {}, lambda: 0.0) as timer:
            timer(StepRunning(step=WARMING))
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        command()
    assert seen[-1] == StepEnded(step=WARMING, seconds=0.0, failed=True)


@pytest.mark.parametrize("ended", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_step_goes_on_after_ctrl_c(ended):
    """It had the mark of one that failed, above "what the fleet has accepted goes on"."""
    seen = []

    def command():
        with StepTimer(seen.append, {}, lambda: 0.0) as timer:
            timer(StepRunning(step=WARMING))
            raise ended

    with pytest.raises(ended):
        command()
    assert seen == [StepRunning(step=WARMING)]


def test_bytes_that_move_are_a_step():
    seen = []
    with StepTimer(seen.append, {}, lambda: 0.0):
        pass
    assert seen == []
    with StepTimer(seen.append, {}, lambda: 0.0) as timer:
        timer(BytesMoving(progress=TransferProgress(phase="hub", name="m", node="a")))
    assert seen[-1] == StepEnded(step=FleetStep.STAGING, seconds=0.0)


def test_what_was_measured_last_is_expected_and_a_typical_value_of_the_small_model_alone(tmp_path):
    file = tmp_path / "deep" / "step-times.json"
    assert load_step_times(file) == {}
    save_step_times(file, TINY, {RAY: 8.0, LOADING: 3.04})
    save_step_times(file, TINY, {WARMING: 2.0})
    assert load_step_times(file) == {FLEET: {RAY: 8.0}, TINY: {LOADING: 3.0, WARMING: 2.0}}
    found = expected_times(load_step_times(file), TINY)
    assert found[RAY] == ExpectedTime(seconds=8.0, measured=True)
    assert found[LOADING] == ExpectedTime(seconds=3.0, measured=True)
    assert not found[FleetStep.TRAINING].measured
    assert expected_times(load_step_times(file), "org/large on vllm, TP=2").keys() == {RAY}


def test_times_that_cannot_be_read_are_none(tmp_path):
    (tmp_path / "x").write_text('{"fleet": {"no such step": 1}}')
    assert load_step_times(tmp_path / "x") == {}


@pytest.mark.parametrize(
    ("state", "passed", "kept"),
    [("ready", ((),), True), ("failed", ((),), False), ("ready", (("out of memory",),), False)],
)
def test_a_start_that_failed_or_fell_is_no_measure_of_the_next(state, passed, kept):
    status = DeploymentStatus(
        name="a",
        generation=1,
        state=state,
        detail="",
        who="",
        since=0.0,
        plan=None,
        groups=(),
        passed=passed,
    )
    assert all_ready({"a": status}) is kept
    assert not all_ready({})


def test_the_last_start_of_a_plan_is_the_sum_of_its_steps():
    made = plan()
    known = {started_by((made,)): {FleetStep.LOADING: 200.0, FleetStep.WARMING_UP: 40.0}}
    assert last_start_s(known, made) == 240.0
    assert last_start_s(known, plan(groups=2)) == 240.0, "groups of one kind start at the same time"
    assert last_start_s({}, made) is None


def test_the_last_start_of_a_plan_is_without_what_is_done_once(tmp_path):
    """After a first apply with an hour of download each plan had "the last start took 64 min", and so had `status`."""
    file, made = tmp_path / "times.json", plan()
    subject = started_by((made,))
    first = {FleetStep.STAGING: 3600.0, FleetStep.WAITING: 30.0, FleetStep.STARTING_ENGINE: 20.0}
    save_step_times(file, subject, {**first, LOADING: 100.0, FleetStep.COMPILING: 90.0, WARMING: 10.0})
    assert last_start_s(load_step_times(file), made) == 220.0
    save_step_times(file, subject, {FleetStep.STARTING_ENGINE: 20.0, LOADING: 90.0, WARMING: 10.0})
    assert last_start_s(load_step_times(file), made) == 120.0, "its kernels were kept, so it compiled nothing"
    assert load_step_times(file)[subject][FleetStep.STAGING] == 3600.0, "expected of the next download"
    save_step_times(file, subject, {FleetStep.STAGING: 60.0})
    assert last_start_s(load_step_times(file), made) == 120.0, "nothing was started"


def test_a_file_that_cannot_be_written_is_no_error(tmp_path):
    """A start that has succeeded ended with an error."""
    (tmp_path / "file").write_text("in the way of a directory")
    save_step_times(tmp_path / "file" / "times.json", TINY, {LOADING: 1.0})
    assert load_step_times(tmp_path / "file" / "times.json") == {}
