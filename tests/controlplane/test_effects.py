"""Sweeps before starts: one for all that start together, and a silent node delays only what needs it."""

import asyncio

import pytest
from control_values import deployment, plan
from controller_world import World

from sparkfleet.controlplane import effects
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.units import GIB


def plan_on(*nodes):
    """One group on each of these nodes."""
    base = plan(groups=len(nodes))
    groups = []
    for node, group in zip(nodes, base.groups, strict=True):
        (rung,) = group.ladder
        candidate = rung.candidate.model_copy(update={"shape": GroupShape(nodes=(node,))})
        ladder = (rung.model_copy(update={"candidate": candidate}),)
        groups.append(group.model_copy(update={"ladder": ladder}))
    return base.model_copy(update={"groups": tuple(groups)})


@pytest.fixture
async def three(tmp_path):
    """A fleet of three nodes that have been looked at."""
    world = World(tmp_path)
    world.inventory_nodes = ("this", "b", "c")
    world.nodes.available = dict.fromkeys(world.inventory_nodes, 100 * GIB)
    world.nodes.boots = dict.fromkeys(world.inventory_nodes, "first")
    await world.look()
    yield world
    world.store.close()


async def put_on(world, *nodes):
    await world.controller.commands.put(deployment(), plan_on(*nodes), "me")
    await world.controller.reconcile()


def started_on(world):
    return [launch.placements[0].node for launch in world.apps.launches]


async def test_groups_that_start_together_are_preceded_by_one_sweep(world):
    """Each had one of its own: with a silent node eight starts took 80 s, and no round followed meanwhile."""
    order = []
    sweep, deploy = world.nodes.sweep, world.apps.deploy

    async def noted_sweep(*words):
        order.append("sweep")
        return await sweep(*words)

    async def noted_deploy(launch):
        order.append("deploy")
        await deploy(launch)

    world.nodes.sweep, world.apps.deploy = noted_sweep, noted_deploy
    await world.put(groups=4)
    assert order == ["sweep", *["deploy"] * 4]
    assert world.nodes.swept == [frozenset(("tiny", 1, replica) for replica in range(4))]


async def test_the_nodes_of_a_start_are_swept_before_it_and_the_others_after_it(three):
    seen = []
    deploy = three.apps.deploy

    async def noted(launch):
        seen.append(list(three.nodes.swept_on))
        await deploy(launch)

    three.apps.deploy = noted
    await put_on(three, "this", "b")
    assert seen == [[{"this", "b"}]] * 2
    assert three.nodes.swept_on == [{"this", "b"}, {"c"}]


async def test_a_node_that_does_not_answer_is_waited_for_after_all_other_starts(three):
    three.nodes.silent = {"b"}
    await three.look()
    await put_on(three, "b", "this")
    assert started_on(three) == ["this", "b"]
    assert three.nodes.swept_on == [{"this"}, {"b"}, {"c"}]


async def test_a_node_that_does_not_answer_and_has_no_start_is_not_called(three):
    three.nodes.silent = {"c"}
    await three.look()
    await put_on(three, "this", "b")
    assert three.nodes.swept_on == [{"this", "b"}]


async def test_a_sweep_that_does_not_end_holds_no_start_up(world, monkeypatch):
    """Ray's own calls have no time limit: a round waited for them with all later starts."""
    monkeypatch.setattr(effects, "SWEEP_S", 0.01)

    async def never(*_):
        await asyncio.Event().wait()

    world.nodes.sweep = never
    await world.put(groups=2)
    assert len(world.apps.launches) == 2


async def test_a_group_without_a_launch_costs_no_sweep(three):
    three.inventory_nodes = ("this",)
    await put_on(three, "b")
    assert (started_on(three), three.nodes.swept) == ([], [])


async def test_after_a_deployment_is_gone_nodes_that_do_not_answer_are_not_called(three):
    await put_on(three, "this", "b")
    await three.controller.commands.remove("tiny", "me")
    await three.controller.reconcile()
    three.nodes.silent = {"b"}
    await three.look()
    three.nodes.swept_on.clear()
    await three.controller.reconcile()
    three.apps.finish()
    await three.controller.reconcile()
    assert three.nodes.swept_on == [{"this", "c"}]
