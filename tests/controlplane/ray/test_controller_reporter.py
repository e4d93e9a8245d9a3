"""Reports of a group to a controller that has to be found first."""

import asyncio
import threading
from concurrent.futures import Future

import ray
from controller_world import report

from sparkfleet.controlplane.ray.controller_reporter import ControllerReporter
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.runtime.named_actor import NamedActor


class Controller:
    """The actor's handle; `lost` makes calls fail."""

    def __init__(self):
        self.got = []
        self.lost = False
        self.report = self
        self.arrived = asyncio.Event()

    def remote(self, text):
        self.got.append(GroupReport.model_validate_json(text).phase)
        self.arrived.set()
        return self

    def future(self):
        done = Future()
        if self.lost:
            done.set_exception(ConnectionError("gone"))
        else:
            done.set_result(None)
        return done


async def test_reports_wait_in_the_background_for_a_gcs_that_hangs_and_the_newest_one_is_sent(monkeypatch):
    """The group's actor hung with the GCS, and its guard ended it after 8 s."""
    controller, answers = Controller(), threading.Event()
    looked = []

    def get_actor(name, namespace):
        looked.append(name)
        assert answers.wait(10.0)
        return controller

    monkeypatch.setattr(ray, "get_actor", get_actor)
    reporter = ControllerReporter(NamedActor("controller", "fleet"))
    timer = threading.Timer(3.0, answers.set)  # ends the test on code that waits for it
    timer.start()
    for phase in (GroupPhase.STARTING, GroupPhase.READY):
        reporter(report(1, phase=phase))
    assert not answers.is_set()
    answers.set()
    await controller.arrived.wait()
    assert controller.got == [GroupPhase.READY]
    reporter(report(1, phase=GroupPhase.FAILED))  # at once: the process may end now
    assert controller.got == [GroupPhase.READY, GroupPhase.FAILED]
    controller.lost = True
    reporter(report(1, phase=GroupPhase.READY))
    controller.lost = False
    controller.arrived.clear()
    reporter(report(1, phase=GroupPhase.READY))  # found again: another actor may have the name
    await controller.arrived.wait()
    assert len(looked) == 2
    timer.cancel()
