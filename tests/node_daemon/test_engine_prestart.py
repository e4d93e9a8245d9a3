"""Engines that `up` starts before Ray, and a reboot with it."""

import sqlite3

import pytest
from control_values import deployment, inventory, plan
from fake_runtime import FakeRuntime

from sparkfleet.controlplane.api.api_models import ApplyRequest, UpRequest
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.tables.groups import GroupTable
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
from sparkfleet.node_daemon import engine_prestart
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.units import GIB


class Head:
    """A head node with 100 GiB free, through its boots."""

    def __init__(self, paths, monkeypatch):
        self.paths = paths
        self.runtime = FakeRuntime()
        self.memory = 100 * GIB
        self.boot = "first"
        monkeypatch.setattr(engine_prestart, "available_memory", lambda: self.memory)
        monkeypatch.setattr(engine_prestart, "this_boot", lambda: self.boot)

    async def up(self, *plans, **fields):
        apply = tuple(ApplyRequest(spec=deployment(one.name, **fields), plan=one, who="me") for one in plans)
        request = UpRequest(fleet="home", inventory=inventory(), apply=apply)
        await engine_prestart.start_engines(self.paths, request, self.runtime)

    def reboot(self, boot):
        self.boot, self.runtime = boot, FakeRuntime()

    @property
    def started(self):
        return [spec.id.deployment for spec in self.runtime.started]

    @property
    def store(self):
        return Store(self.paths.database)


@pytest.fixture
def head(paths, monkeypatch):
    return Head(paths, monkeypatch)


async def test_only_engines_whose_memory_is_free_are_started(head):
    await head.up(plan("large", mid=101.0 * GIB), plan("small", mid=99.0 * GIB))
    assert head.started == ["small"]
    head.memory = 102 * GIB
    await head.up()
    assert head.started == ["small", "large"]


async def test_what_is_on_demand_waits_for_its_first_request(head):
    await head.up(plan(), on_demand=True)
    assert (head.started, head.store.groups.starts()) == ([], {})


async def test_a_store_that_another_process_works_with_is_left_to_it(head):
    other = StoreLock(head.paths.root)
    other.take()
    await head.up(plan())
    assert head.started == []
    assert not head.paths.database.exists()
    other.release()
    await head.up(plan())
    assert head.started == ["tiny"]


async def test_what_is_started_is_written_down_before(head):
    seen = []
    start = head.runtime.start

    async def watched(spec):
        store = head.store
        seen.append(store.groups.starts())
        store.close()
        return await start(spec)

    head.runtime.start = watched
    await head.up(plan())
    assert seen == [{("tiny", 1, 0): {"this": "first"}}]


async def test_what_took_the_node_down_is_left_to_the_controller(head):
    await head.up(plan())
    await head.up()
    assert head.started == ["tiny"], "Ray alone has ended: the same engine goes on"
    head.reboot("second")
    await head.up()
    assert head.started == []


async def test_what_was_ready_before_a_reboot_is_started_with_it(head):
    await head.up(plan())
    store = head.store
    store.groups.end_start(("tiny", 1, 0))
    store.close()
    head.reboot("second")
    await head.up()
    assert head.started == ["tiny"]


async def test_what_is_given_up_is_not_started_until_it_is_applied_again(head):
    await head.up(plan())
    store = head.store
    store.groups.set_standing("tiny", 1, 0, Standing(given_up=True))
    store.close()
    head.reboot("second")
    await head.up()
    assert head.started == []
    await head.up(plan())
    assert [spec.id.generation for spec in head.runtime.started] == [2]


async def test_a_plan_that_another_apply_has_overtaken_starts_nothing_and_stops_no_start(head):
    await head.up(plan(), plan("other"))
    late = ApplyRequest(spec=deployment(), plan=plan(concurrency=8), who="late", base=0)
    request = UpRequest(fleet="home", inventory=inventory(), apply=(late,))
    await engine_prestart.start_engines(head.paths, request, head.runtime)
    store = head.store
    assert {name: one.generation for name, one in store.deployments.desired().items()} == {
        "tiny": 1,
        "other": 1,
    }
    store.close()
    assert sorted(head.started) == ["other", "tiny"]


async def test_on_a_drained_head_nothing_is_started_before_ray_either(head):
    await head.up(plan("tiny"))
    head.store.groups.end_start(("tiny", 1, 0))  # it was ready
    head.store.drains.drain("this", "me")
    head.reboot("second")
    await head.up()
    assert head.started == []
    head.store.drains.undrain("this")
    await head.up()
    assert head.started == ["tiny"]


async def test_a_node_that_left_the_inventory_keeps_no_other_deployment_and_no_head_from_starting(head):
    """`up` and a reboot of the head ended with the error of one deployment, and started none."""
    lost = plan("lost")
    (group,) = lost.groups
    candidate = group.choice.candidate.model_copy(update={"shape": GroupShape(nodes=("this", "gone"), tp=2)})
    rung = group.choice.model_copy(update={"candidate": candidate})
    lost = lost.model_copy(update={"groups": (group.model_copy(update={"ladder": (rung,)}),)})
    apply = tuple(ApplyRequest(spec=deployment(one.name), plan=one, who="me") for one in (lost, plan()))
    request = UpRequest(fleet="home", inventory=inventory("this", "that"), apply=apply)
    await engine_prestart.start_engines(head.paths, request, head.runtime)
    store = head.store
    assert list(store.groups.starts()) == [("tiny", 1, 0)]
    store.close()


async def test_a_full_disk_starts_no_engine_before_ray_and_ends_no_start_of_the_head(head, monkeypatch):
    """After a power cut the fleet of a head with cron stayed down until its next reboot."""
    await head.up(plan())
    head.reboot("second")
    store = head.store
    store.groups.end_start(("tiny", 1, 0))
    store.close()

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(GroupTable, "begin_start", full)
        await head.up()
    assert head.started == []
    await head.up()
    assert head.started == ["tiny"]
