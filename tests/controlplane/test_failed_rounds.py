"""Rounds, commands and watches of the controller that fail: it goes on, and nothing is counted twice."""

import asyncio
import sqlite3

import pytest
from control_values import deployment, plan
from controller_world import diagnosed
from prometheus_client import generate_latest

from sparkfleet.controlplane import controller as module
from sparkfleet.controlplane import node_watch
from sparkfleet.controlplane.policy.state import Now
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.gateway.routing_table import KeyLimits


async def test_a_round_that_fails_is_written_down_and_the_next_one_works(world, monkeypatch):
    calls = []

    async def fails_once():
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("Serve is away")
        return ()

    monkeypatch.setattr(world.apps, "list", fails_once)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    running = asyncio.create_task(world.controller.run())
    try:
        events = await asyncio.wait_for(world.controller.event_log.events(0, None, wait_s=5), 6)
        assert "Serve is away" in events[0].message
        while len(calls) < 2:
            await asyncio.sleep(0.01)
    finally:
        running.cancel()


async def test_a_round_that_ray_serve_does_not_let_end_is_a_trouble_until_it_answers(world, monkeypatch):
    """No message named a Serve controller that hung (stopped, in a loop), and nothing was restarted any more."""
    answers = asyncio.Event()

    async def hangs():
        await answers.wait()
        return ()

    def trouble():
        page = generate_latest(world.metrics.registry).decode()
        return next(line for line in page.splitlines() if line.startswith("sparkfleet_controller_trouble "))

    monkeypatch.setattr(world.apps, "list", hangs)
    monkeypatch.setattr(module, "LIST_LATE_S", 0.2)

    async def until(value):
        async with asyncio.timeout(30):
            while not trouble().endswith(value):
                await asyncio.sleep(0.02)

    assert trouble().endswith(" 0.0")
    running = asyncio.create_task(world.controller.run())
    await until(" 1.0")
    assert "Ray Serve or Ray's GCS on the head does not answer" in world.controller.queries.status().trouble
    answers.set()
    await until(" 0.0")
    running.cancel()


async def test_a_full_disk_stops_the_work_only_as_long_as_it_is_full(world, monkeypatch):
    """Nothing can be written down then, not even that."""
    lists, full = [], sqlite3.OperationalError("database or disk is full")

    async def fails_twice():
        lists.append(1)
        if len(lists) <= 2:
            raise full
        return ()

    def refuses(*event):
        raise full

    monkeypatch.setattr(world.apps, "list", fails_twice)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(world.store.events, "record", refuses)
        running = asyncio.create_task(world.controller.run())
        async with asyncio.timeout(5):
            while len(lists) < 4:
                await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()


async def test_ray_serve_that_could_not_be_restarted_is_restarted_in_the_next_round(world, monkeypatch):
    moment = [1000.0, 1000.0]
    world.controller = world.restarted(clocks=lambda: Now(unix=moment[0], steady=moment[1]))
    await world.controller.reconcile()
    moment[0] -= 60

    async def fails():
        raise ConnectionError("Serve is away")

    with monkeypatch.context() as patched:
        patched.setattr(world.apps, "renew", fails)
        await world.controller.round()
    await world.controller.round()
    await world.controller.round()
    assert world.apps.renewed == 1


async def test_a_disk_that_is_full_between_two_writes_of_a_decision_counts_no_failure_twice(
    world, monkeypatch
):
    """The position on the ladder was stored and the start not: the next round counted the same failure again, and left the
    rung."""
    await world.put(rungs=2)
    await world.controller.intake.report(diagnosed("transient"))
    world.apps.become("tiny", 1, "failed")

    def full(group):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.groups, "end_start", full)
        await world.controller.round()
    await world.controller.round()
    assert world.store.groups.standings()["tiny", 1, 0] == Standing(tries=1)
    assert world.rungs == [0, 0]


async def test_a_command_that_failed_on_a_full_disk_has_changed_nothing(world, monkeypatch):
    """There may be room for the change and none for its event: the change was carried out later, by a failed command."""
    controller, store = world.controller, world.store
    keys = controller.keys
    await controller.commands.put(deployment(), plan(), "me")
    await controller.commands.drain("other", "me")
    await keys.create("mine")

    def state():
        return (
            store.deployments.desired(),
            store.drains.nodes(),
            store.keys.all(),
            store.identity(),
            store.events.read(),
        )

    def refuses(*event, **fields):
        raise sqlite3.OperationalError("database or disk is full")

    before, told = state(), []
    monkeypatch.setattr(store, "on_change", lambda: told.append(1))
    commands = (
        lambda: controller.commands.put(deployment(), plan(concurrency=8), "me", True),
        lambda: controller.commands.put(deployment("b"), plan("b"), "me"),
        lambda: controller.commands.remove(deployment().name, "me"),
        lambda: controller.commands.drain("this", "me"),
        lambda: controller.commands.undrain("other", "me"),
        lambda: keys.create("yours"),
        lambda: keys.limit("mine", KeyLimits(concurrent=1)),
        lambda: keys.rotate("mine", 0.0),
        lambda: keys.revoke("mine"),
    )
    for command in commands:
        with monkeypatch.context() as patched:
            patched.setattr(store.events, "record", refuses)
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await command()
        assert state() == before
    assert not told
    for number, command in enumerate(commands, 1):
        await command()
        assert len(told) == number
        assert len(store.events.read()) == len(before[-1]) + number


async def test_a_watch_over_the_nodes_that_failed_is_taken_up_again(world, monkeypatch):
    """Ray may be away for a moment. Nothing else would record that a node has left or come back."""
    calls = []
    look = world.nodes.look

    async def fails_twice():
        calls.append(1)
        if len(calls) <= 2:
            raise ConnectionError("Ray is away")
        return await look()

    monkeypatch.setattr(world.nodes, "look", fails_twice)
    monkeypatch.setattr(node_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    running = asyncio.create_task(world.controller.run())
    try:
        events = await asyncio.wait_for(world.controller.event_log.events(0, None, wait_s=5), 6)
    finally:
        running.cancel()
    assert [(event.subject, event.message) for event in events] == [("this", "this joined the fleet")]
    assert len(calls) >= 3


async def test_a_down_ends_the_groups_although_the_disk_is_full(world, monkeypatch):
    """Nothing ended for a minute, after which everything was killed, requests and all."""
    await world.put()
    await world.ready(1)

    def full(*event, **fields):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.store.events, "record", full)
    monkeypatch.setattr(world.store.groups, "end_start", full)
    world.controller.commands.pause()
    await world.controller.round()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_on_a_full_disk_nothing_else_ends_without_its_event(world, monkeypatch):
    await world.put()
    await world.ready(1)
    await world.controller.commands.remove("tiny", "me")

    def full(*event, **fields):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.events, "record", full)
        await world.controller.round()
    assert world.apps.apps["tiny", 1, 0].status == "running"
    await world.controller.round()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
