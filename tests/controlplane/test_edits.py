"""Changes of a running deployment: only what changes an engine's command starts an engine."""

from control_values import deployment, plan
from controller_world import report

from sparkfleet.group.report import GroupPhase


async def put(world, made, *, retry=False, **fields):
    desired, _ = await world.controller.commands.put(deployment(**fields), made, "me", retry)
    await world.controller.reconcile()
    return desired


async def ready(world, generation, replica=0):
    world.apps.become("tiny", generation, "running", replica=replica)
    await world.controller.intake.report(report(generation, replica=replica, phase=GroupPhase.READY))
    await world.controller.reconcile()


def started(world):
    return [(one.generation, one.replica) for one in world.apps.launches]


def retired(world):
    return [key for key, app in world.apps.apps.items() if app.status == "retiring"]


async def groups(world):
    """Groups that the gateways' table names as ready."""
    table = await world.table()
    return [one.app for one in table.models["tiny"].groups if one.ready]


def state(world):
    (status,) = world.controller.queries.status().deployments
    return status.state, status.detail


async def test_a_restricted_key_changes_the_table_at_once_and_no_engine(world):
    await put(world, plan())
    await ready(world, 1)
    await world.controller.keys.create("ux")
    after = await put(world, plan(), keys=("ux",))
    assert (after.generation, after.groups) == (2, (("tiny", 1, 0),))
    assert started(world) == [(1, 0)]
    assert (await world.table()).models["tiny"].keys == ("ux",)
    assert await groups(world) == ["tiny--g1-0"]
    assert state(world) == ("ready", "")


async def test_a_second_replica_starts_one_engine_and_a_first_one_again_ends_it(world):
    await put(world, plan())
    await ready(world, 1)
    await put(world, plan(groups=2), replicas=2)
    assert started(world) == [(1, 0), (2, 1)]
    assert await groups(world) == ["tiny--g1-0"], "the running one goes on serving"
    assert state(world) == ("starting", "1 of 2 groups serve")
    await ready(world, 2, 1)
    assert await groups(world) == ["tiny--g1-0", "tiny--g2-1"]
    await put(world, plan(), replicas=1)
    assert started(world) == [(1, 0), (2, 1)]
    assert retired(world) == [("tiny", 2, 1)]
    assert await groups(world) == ["tiny--g1-0"]


async def test_the_file_of_what_still_serves_points_back_to_it(world):
    await put(world, plan())
    await ready(world, 1)
    await put(world, plan(context=1024))
    assert started(world) == [(1, 0), (2, 0)]
    await put(world, plan())
    assert started(world) == [(1, 0), (2, 0)]
    assert retired(world) == [("tiny", 2, 0)]
    assert await groups(world) == ["tiny--g1-0"]
    assert state(world) == ("ready", "")


async def test_of_two_groups_only_the_changed_one_is_replaced_and_its_old_one_serves_until_then(world):
    one, other, changed = plan(), plan(context=256), plan(context=128)
    await put(world, one.model_copy(update={"groups": one.groups + other.groups}))
    await ready(world, 1, 0)
    await ready(world, 1, 1)
    await put(world, one.model_copy(update={"groups": one.groups + changed.groups}))
    assert started(world) == [(1, 0), (1, 1), (2, 1)]
    assert await groups(world) == ["tiny--g1-0", "tiny--g1-1"]
    await ready(world, 2, 1)
    assert await groups(world) == ["tiny--g1-0", "tiny--g2-1"]
    assert retired(world) == [("tiny", 1, 1)]


async def test_applying_again_starts_the_group_that_is_given_up_and_leaves_the_other(world):
    await put(world, plan(groups=2))
    await ready(world, 1, 0)
    await world.fails(replica=1)
    assert state(world)[0] == "failed"
    after = await put(world, plan(groups=2))
    assert after.groups == (("tiny", 1, 0), ("tiny", 2, 1))
    assert started(world) == [(1, 0), (1, 1), (2, 1)]


async def test_retry_starts_every_group_anew(world):
    await put(world, plan())
    await ready(world, 1)
    after = await put(world, plan(), retry=True)
    assert after.groups == (("tiny", 2, 0),)


async def test_a_group_that_is_carried_over_is_found_by_the_next_controller(world):
    await put(world, plan())
    await ready(world, 1)
    await put(world, plan(groups=2), replicas=2)
    world.restarted()
    await world.controller.reconcile()
    await ready(world, 1)
    assert started(world) == [(1, 0), (2, 1)]
    assert state(world) == ("starting", "1 of 2 groups serve")


async def test_a_group_that_is_carried_over_and_fails_starts_again_under_its_name(world):
    await put(world, plan())
    await ready(world, 1)
    await put(world, plan(), keys=("ux",))
    del world.apps.apps["tiny", 1, 0]
    await world.controller.reconcile()
    assert started(world) == [(1, 0), (1, 0)]


async def test_every_generation_is_in_the_history(world):
    await put(world, plan())
    await put(world, plan(), keys=("ux",))
    found = world.store.deployments.history("tiny")
    assert [(one.generation, one.spec.keys, one.members) for one in found] == [
        (1, None, ((1, 0),)),
        (2, ("ux",), ((1, 0),)),
    ]


async def test_status_warns_of_a_stored_deployment_that_runs_code_without_a_commit(world):
    await put(world, plan(), engine_args=("--trust-remote-code",))
    (warning,) = world.controller.queries.status().warnings
    assert warning.startswith("tiny: --trust-remote-code runs whatever code")
    await put(world, plan())
    assert world.controller.queries.status().warnings == ()


async def test_an_edit_waits_for_a_node_on_which_nothing_can_start_and_the_old_generation_serves(world):
    await world.put(high=20.0)
    await world.ready(1)
    world.nodes.available["this"] = 0
    world.nodes.unusable["this"] = "/state cannot be written. `chmod 700 /state` permits it."
    await world.put(high=20.0, concurrency=8)
    await world.controller.reconcile()
    assert {key[1]: app.status for key, app in world.apps.apps.items()} == {1: "running"}
    assert await world.messages("waits") == [
        "this: /state cannot be written. `chmod 700 /state` permits it. The old generation keeps running."
    ]
    world.nodes.unusable.clear()
    await world.controller.reconcile()
    assert {key[1]: app.status for key, app in world.apps.apps.items()} == {1: "retiring"}
