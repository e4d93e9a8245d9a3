"""The fleet as the controller knows it: groups that end, whose plans only the store has."""

from control_values import deployment, plan
from controller_world import World

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.status import NodeReport


def of_two_rungs():
    made = plan(rungs=2)
    first, second = made.groups[0].ladder
    ladder = (first, second.model_copy(update={"reason": "the second one"}))
    return made.model_copy(update={"groups": (made.groups[0].model_copy(update={"ladder": ladder}),)})


async def test_a_new_controller_knows_the_rung_of_an_earlier_group_that_ends(tmp_path):
    """It gets no report of it, and that group is at its second rung."""
    world = World(tmp_path)
    await world.controller.commands.put(deployment(), of_two_rungs(), "me")
    await world.put(context=1024)
    world.store.groups.set_standing("tiny", 1, 0, Standing(rung=1))
    world.apps.become("tiny", 1, "retiring")
    world.apps.become("tiny", 2, "running")
    fleet = world.restarted().fleet
    fleet.see_apps(await world.apps.list())
    assert fleet.state().ending == {("tiny", 1, 0): of_two_rungs().groups[0].ladder[1]}
    assert fleet.state().older == {}
    await world.controller.commands.remove("tiny", "me")
    assert fleet.state().ending.keys() == {("tiny", 1, 0)}, "also once it is deleted"


async def test_a_reading_of_the_nodes_stores_boots_that_were_not_known_when_a_start_began(tmp_path):
    """At once: if the node goes down before the next round, nobody would know that the start took it down."""
    world, group = World(tmp_path), ("tiny", 1, 0)
    world.store.groups.begin_start(group, {"this": "first", "that": ""})
    reports = [
        NodeReport(name="this", joined=True, boot="second"),
        NodeReport(name="that", joined=True, boot="b"),
    ]
    world.controller.fleet.see_nodes(reports, 0.0)
    assert world.store.groups.starts() == {group: {"this": "first", "that": "b"}}
