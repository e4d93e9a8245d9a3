"""Draft tokens of a deployment's requests, from its groups' counters through the controller into its status."""

import sqlite3

import pytest
from control_values import deployment, plan
from controller_world import World, report

from sparkfleet.controlplane import draft_collector
from sparkfleet.controlplane.draft_collector import WRITE_S
from sparkfleet.controlplane.policy.state import Now
from sparkfleet.group.report import GroupPhase
from sparkfleet.perf.prediction import Speculation

NOON = 1_800_000_000.0
MTP = Speculation(method="mtp", tokens=3)
READY = GroupPhase.READY


class Counted:
    """A controller whose only deployment drafts, with a clock that is moved by hand."""

    def __init__(self, tmp_path):
        self.world = World(tmp_path)
        self.now = NOON
        self.world.store.now = lambda: self.now
        self.restart()

    def restart(self):
        self.world.restarted(clocks=lambda: Now(unix=self.now, steady=self.now - NOON + 1000.0))

    async def put(self, speculation=MTP, groups=1, **fields):
        planned = plan(groups=groups, speculation=speculation, **fields)
        spec = deployment(replicas=groups, context=512 * (1 + speculation.tokens))
        await self.world.controller.commands.put(spec, planned, "me")
        await self.world.controller.reconcile()

    async def report(self, steps, mean=2.0, generation=1, phase=READY, replica=0, **fields):
        """A report of a group whose engine has counted so many steps, a minute after the last one."""
        self.now += WRITE_S
        accepted = steps * (mean - 1)
        counts = {"draft_steps": float(steps), "drafted": 3.0 * steps, "accepted": accepted}
        positions = (accepted * 0.6, accepted * 0.3, accepted * 0.1)
        await self.world.controller.intake.report(
            report(
                generation, phase=phase, replica=replica, accepted_by_position=positions, **counts, **fields
            )
        )

    @property
    def drafts(self):
        (one,) = self.world.controller.queries.status().deployments
        return one.drafts

    @property
    def steps(self):
        """Steps by depth of the draft."""
        return {one.setup.speculation.tokens: one.steps for one in self.drafts}


@pytest.fixture
async def here(tmp_path):
    return Counted(tmp_path)


async def test_requests_are_counted_and_the_checks_of_a_start_are_not(here):
    await here.put()
    await here.report(0, phase=GroupPhase.STARTING)
    await here.report(90, mean=3.9)  # the canary and the measurement
    assert here.drafts == ()
    await here.report(1090, mean=2.0)
    (one,) = here.drafts
    assert (one.steps, one.setup.speculation, one.setup.model) == (1000, MTP, "builtin:tiny")
    assert 1 + one.counts.accepted / one.counts.steps == pytest.approx((1090 * 1 - 90 * 2.9) / 1000 + 1)


async def test_what_was_counted_survives_a_restart_of_the_controller_and_is_not_counted_again(here):
    await here.put()
    await here.report(10)
    await here.report(510)
    here.restart()
    await here.report(560)  # the engine has served meanwhile
    await here.report(660)
    assert here.steps == {3: 600}


async def test_an_engine_that_started_again_begins_at_its_own_counters(here):
    await here.put()
    await here.report(10)
    await here.report(510)
    await here.report(50)  # a report of its start was lost
    await here.report(80)
    assert here.steps == {3: 530}
    await here.report(0, phase=GroupPhase.STARTING)
    await here.report(900)  # more than before its start
    await here.report(910)
    assert here.steps == {3: 540}


async def test_an_actor_that_adopts_an_engine_counts_nothing_twice(here):
    """It reports zeros until it has read the engine's counters, which go on."""
    await here.put()
    await here.report(10, actor="a")
    await here.report(510, actor="a")
    await here.report(0, actor="b")
    await here.report(510, actor="b")
    await here.report(520, actor="b")
    assert here.steps == {3: 510}


async def test_groups_of_a_deployment_are_counted_together(here):
    await here.put(groups=2)
    for steps in (10, 110, 210):
        for replica in (0, 1):
            await here.report(steps, replica=replica)
    assert here.steps == {3: 400}


async def test_another_draft_is_counted_apart_and_the_former_stays(here):
    await here.put()
    await here.report(10)
    await here.report(510)
    await here.put(MTP.model_copy(update={"tokens": 1}))
    await here.report(10, generation=2)
    await here.report(60, generation=2)
    await here.report(9_000)  # of the older group, whose plan is not the newest
    assert here.steps == {3: 500, 1: 50}


@pytest.mark.parametrize("speculation", [Speculation(), Speculation(method="ngram", tokens=3)])
async def test_without_steps_that_are_all_counted_there_is_nothing(here, speculation):
    await here.put(speculation)
    for steps in (10, 510, 900):
        await here.report(steps)
    assert here.drafts == ()
    assert here.world.store.drafts.traffic() == {}


async def test_a_group_at_a_lower_rung_counts_for_what_that_rung_drafts(here):
    planned = plan(rungs=2, speculation=MTP)
    (group,) = planned.groups
    lower = group.ladder[1].candidate.model_copy(update={"speculation": Speculation()})
    rung = group.ladder[1].model_copy(update={"candidate": lower})
    ladder = group.model_copy(update={"ladder": (group.ladder[0], rung)})
    await here.world.controller.commands.put(
        deployment(), planned.model_copy(update={"groups": (ladder,)}), "me"
    )
    for steps in (10, 510):
        await here.report(steps, rung=1)
    assert here.drafts == ()
    for steps in (520, 620):
        await here.report(steps, rung=0)
    assert here.steps == {3: 100}


async def test_a_full_disk_loses_no_report_and_no_count(here, monkeypatch):
    await here.put()
    await here.report(10)

    def full(more):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(here.world.store.drafts, "add", full)
        await here.report(510)
        assert here.world.controller.fleet.state().is_ready(("tiny", 1, 0))
    await here.report(610)
    assert here.steps == {3: 600}


async def test_groups_that_are_gone_are_forgotten(here, monkeypatch):
    monkeypatch.setattr(draft_collector, "MOST_GROUPS", 2)
    await here.put(groups=3)
    for replica in (0, 1, 2):
        await here.report(10, replica=replica)
    await here.report(110, replica=2)
    assert here.steps == {3: 100}
    await here.report(110, replica=0)  # its counters are not known any more
    assert here.steps == {3: 100}


async def test_a_minute_is_written_at_once(here, monkeypatch):
    await here.put()
    written = []
    add = here.world.store.drafts.add
    monkeypatch.setattr(here.world.store.drafts, "add", lambda more: (written.append(1), add(more)))
    for second in range(1, 121):
        here.now -= WRITE_S - 1
        await here.report(10 * second)
    assert len(written) == 2
