"""A node that is lost is named by the deployments that need it, long before its group moves elsewhere."""

import pytest
from clocks import Clock
from control_values import deployment, plan
from controller_fakes import FakeNodes
from controller_world import World, report
from observed_values import NODE
from statuses import rung

from sparkfleet.controlplane.ray.node_actor import rails_of
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase
from sparkfleet.planner.types.plan import GroupPlan
from sparkfleet.specs.inventory import Inventory, Link, RailEnd
from sparkfleet.telemetry.node_readings import RailReading
from sparkfleet.units import GIB


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    world.nodes = FakeNodes({"this": 100 * GIB})
    world.restarted()
    world.clock = Clock()
    world.controller.watch._steady = world.clock
    return world


def detail(world):
    (deployment,) = world.controller.queries.status().deployments
    return deployment.state, deployment.detail


async def test_a_node_that_leaves_is_named_with_the_next_reading(world):
    await world.put()
    await world.look()
    assert detail(world) == ("starting", "its group is being placed")
    world.clock.now += 4
    world.nodes.away = {"this"}
    await world.look()
    state, words = detail(world)
    assert (state, words.partition(";")[0]) == ("starting", "this does not answer (for 4 s)")


async def test_nodes_that_are_away_together_are_one_phrase(tmp_path):
    """Seven of eight behind a switch without power were seven sentences in the row of each deployment."""
    world = World(tmp_path)
    world.nodes = FakeNodes(dict.fromkeys(("this", "that"), 100 * GIB))
    world.restarted()
    world.clock = Clock()
    world.controller.watch._steady = world.clock
    groups = tuple(GroupPlan(ladder=(rung(nodes=(name,)),)) for name in ("this", "that"))
    await world.controller.commands.put(
        deployment("tiny"), plan(name="tiny").model_copy(update={"groups": groups}), "me"
    )
    await world.look()
    world.clock.now += 4
    world.nodes.away = {"this", "that"}
    await world.look()
    assert detail(world)[1].partition(";")[0] == "that, this do not answer (for 4 s)"


async def test_the_time_that_it_is_away_is_no_change_of_the_gateways_table(world):
    """Each gateway got another table every second, and each round published anew."""
    await world.put()
    await world.look()
    world.nodes.away = {"this"}
    tables = []
    for _ in range(2):
        world.clock.now += 4
        await world.look()
        await world.controller.reconcile()
        tables.append(await world.table())
    assert tables[0].version == tables[1].version
    entry = tables[1].models["tiny"]
    assert (entry.state, entry.detail.partition(";")[0]) == ("starting", "this does not answer")
    assert detail(world)[1].partition(";")[0] == "this does not answer (for 8 s)"


async def test_one_that_is_joined_and_silent_is_named_too_and_its_group_stays_ready(world):
    await world.ready(await world.put())
    await world.look()
    assert detail(world) == ("ready", "")
    world.nodes.silent = {"this"}
    world.clock.now += 3
    await world.look()
    assert detail(world) == ("ready", ""), "its actor may have just begun"
    world.clock.now += 9
    await world.look()
    assert detail(world) == ("ready", "this does not answer (for 12 s)")
    assert [node.silent_s for node in world.controller.queries.status().nodes] == [12], "not merely joined"
    world.nodes.silent = frozenset()
    await world.look()
    assert detail(world) == ("ready", "")
    assert [node.silent_s for node in world.controller.queries.status().nodes] == [None]


async def test_the_hour_that_a_node_was_away_is_not_its_silence_after_its_return(world):
    """It was named at once, with all of that time, while its actor had just begun."""
    await world.ready(await world.put())
    await world.look()
    world.nodes.away = {"this"}
    await world.look()
    world.clock.now += 3600
    world.nodes.away, world.nodes.silent = set(), {"this"}
    await world.look()
    assert detail(world) == ("ready", "")
    world.clock.now += 9
    await world.look()
    assert detail(world) == ("ready", "this does not answer (for 9 s)")


async def test_what_a_ready_group_reports_is_shown(world):
    generation = await world.put()
    await world.ready(generation)
    await world.look()
    words = "rank 0 on this has not answered for 12 s"
    await world.controller.intake.report(report(generation, phase=GroupPhase.READY, detail=words))
    assert detail(world) == ("ready", words)


async def test_a_file_of_a_node_that_its_next_start_needs_is_a_warning_and_an_event(world):
    """Nothing named it before the node had to start something."""
    words = "The secret /state/engine.secret cannot be used: No such file or directory. Put the file back."
    sound = world.nodes.look
    await world.look()

    async def look():
        return tuple(node.model_copy(update={"spoilt": (words,)}) for node in await sound())

    world.nodes.look = look
    await world.look()
    await world.look()
    assert world.controller.queries.status().warnings == (f"this: {words}",)
    events = [event.message for event in world.store.events.read() if "secret" in event.message]
    assert events == [words]
    world.nodes.look = sound
    await world.look()
    assert world.controller.queries.status().warnings == ()


async def test_a_gpu_that_cannot_be_read_is_a_warning_and_an_event(world):
    """Its series ended, and nothing else showed it: `status` had the node as joined with so much memory available."""
    sound = world.nodes.look
    await world.look()
    slow = NODE.readings.slow.model_copy(update={"gpus": None, "gpu_trouble": "nvidia-smi finds no GPU."})
    readings = NODE.readings.model_copy(update={"slow": slow, "rails": ()})

    async def look():
        return tuple(node.model_copy(update={"readings": readings}) for node in await sound())

    world.nodes.look = look
    await world.look()
    await world.look()
    (warning,) = world.controller.queries.status().warnings
    assert warning.startswith("this: the GPU cannot be read: nvidia-smi finds no GPU. No engine starts here")
    assert warning.endswith("`sparkfleet doctor this`.")
    assert len([one for one in world.store.events.read() if "cannot be read" in one.message]) == 1


@pytest.mark.parametrize(
    ("ups", "named"),
    [
        ((True, False), "rail roce1 has no carrier: the cable is out, or the other node off"),
        (
            (False, False),
            "rail roce0 has no carrier and rail roce1 has no carrier: the cable is out, or the other node off",
        ),
        ((True, None), "rail roce1 does not exist: the cable is out"),
        ((True, True), ""),
        ((), ""),
    ],
)
async def test_a_rail_that_is_down_is_a_warning_and_an_event_although_nothing_runs_over_it(world, ups, named):
    """Only a rail that carries something was named, by what then failed."""
    sound = world.nodes.look
    await world.look()
    rails = tuple(RailReading(netdev=f"roce{number}", up=up, peer="that") for number, up in enumerate(ups))

    async def look():
        return tuple(
            node.model_copy(update={"readings": NODE.readings.model_copy(update={"rails": rails})})
            for node in await sound()
        )

    world.nodes.look = look
    await world.look()
    await world.look()
    warnings = world.controller.queries.status().warnings
    events = [event.message for event in world.store.events.read() if "the cable is out" in event.message]
    assert (len(warnings), len(events)) == ((1, 1) if named else (0, 0))
    assert all(
        words.startswith(f"this: {named}") and "`sparkfleet doctor this`" in words for words in warnings
    )
    assert all(words.startswith(named) for words in events)
    rails = tuple(rail.model_copy(update={"peer": ""}) for rail in rails)  # at a switch
    await world.look()
    named = named.replace("the other node", "the switch")
    assert all(words.startswith(f"this: {named}") for words in world.controller.queries.status().warnings)
    world.nodes.look = sound
    await world.look()
    assert world.controller.queries.status().warnings == ()


async def test_a_gcs_that_does_not_answer_is_named_within_15_s(world):
    """Ray's calls wait for it without an end, so that no reading ended, and nothing named it."""
    await world.look()
    world.clock.now += 9
    assert world.controller.queries.status().warnings == ()
    world.clock.now += 3
    (warning,) = world.controller.queries.status().warnings
    assert warning.startswith("The nodes have not been read for 10 s: Ray's GCS on the head does not answer.")
    await world.look()
    assert world.controller.queries.status().warnings == ()


async def reboots(world):
    """Messages of the events of reboots, each after a reading and a second one."""
    await world.look()
    await world.look()
    return [event.message for event in world.store.events.read() if "reboot" in event.message]


async def test_a_node_with_another_boot_is_an_event_and_one_that_is_seen_first_is_none(world):
    """After a power cut of a minute nothing named the node that had none."""
    assert await reboots(world) == []
    world.nodes.boots = {"this": "second"}
    assert await reboots(world) == ["this rebooted: its engines ended with it"]


async def test_a_node_that_went_off_and_is_back_has_its_last_readings_in_the_event(world):
    """A Spark that is too hot, or whose memory is full, goes off without a line in a log of its own."""
    sound, slow = world.nodes.look, NODE.readings.slow.model_copy(update={"temperature_c": 97.0})
    hot = {
        "readings": NODE.readings.model_copy(update={"slow": slow}),
        "memory_total": 128 << 30,
        "memory_available": 2 << 30,
    }

    async def look():
        return tuple(node.model_copy(update=hot) for node in await sound())

    world.nodes.look = look
    await world.look()
    world.nodes.look = sound
    world.nodes.boots = {"this": "second"}
    (message,) = await reboots(world)
    heat = "Its last readings: the hottest thermal zone at 97 °C, the GPU at 60 °C, 2 of 128 GiB available"
    assert message.endswith(heat)


async def test_a_reboot_is_known_to_the_controller_that_starts_after_it_and_named_once(world):
    """A power cut ends the head and its controller as well."""
    await world.look()
    world.restarted()
    assert await reboots(world) == [], "a controller that restarts is no reboot"
    world.nodes.boots = {"this": "second"}
    world.restarted()
    assert len(await reboots(world)) == 1
    world.restarted()
    assert len(await reboots(world)) == 1


async def test_a_node_that_has_joined_and_whose_boot_was_not_read_has_not_rebooted(world):
    await world.look()
    world.nodes.boots = {"this": ""}
    assert await reboots(world) == []
    world.nodes.boots = {"this": "first"}
    assert await reboots(world) == []


@pytest.mark.parametrize(
    ("drained", "away", "others", "lost"),
    [
        ((), (), True, ["this", "that"]),
        (("that",), (), True, []),
        (("that",), ("that",), False, []),
        ((), ("that",), False, []),
        ((), ("that",), True, ["this"]),
    ],
)
async def test_a_rail_is_not_lost_while_the_node_at_its_other_end_is_away(world, drained, away, others, lost):
    """A drained node that rebooted alerted about the cables of its neighbours, which it took down for a minute.

    Of a node that did not answer because the rail of its Ray was down, that rail was not named, although the other was up.
    """
    world.nodes.available = {"this": 100 * GIB, "that": 100 * GIB}
    world.nodes.boots["that"] = "first"
    sound = world.nodes.look
    await world.look()
    ends = {
        name: (
            RailReading(netdev="roce0", up=False, peer=peer),
            RailReading(netdev="roce1", up=others, peer=peer),
        )
        for name, peer in (("this", "that"), ("that", "this"))
    }

    async def look():
        return tuple(
            node.model_copy(
                update={"readings": NODE.readings.model_copy(update={"rails": ends[node.name]})}
                if node.joined
                else {}
            )
            for node in await sound()
        )

    for node in drained:
        world.store.drains.drain(node, "me")
    world.nodes.look, world.nodes.away = look, set(away)
    await world.look()
    samples = {
        (one.metric.name, *one.labels): one.value
        for one in world.controller.queries.samples()
        if one.metric.name in ("sparkfleet_rail_lost", "sparkfleet_rail_up")
    }
    assert samples["sparkfleet_rail_up", "this", "roce0"] == 0
    down = [key[1:] for key, value in samples.items() if key[0] == "sparkfleet_rail_lost" and value]
    assert down == [(name, "roce0") for name in lost]
    warned = [words for words in world.controller.queries.status().warnings if "no carrier" in words]
    assert [words.partition(":")[0] for words in warned] == lost


def test_each_end_of_a_rail_knows_the_node_at_the_other_end():
    names = ("spark1", "spark2")
    rails = [
        tuple(
            RailEnd(netdev=f"n{rail}", rdma=f"r{rail}", address=f"192.168.{rail}.{index + 1}/24")
            for index in range(2)
        )
        for rail in (1, 2)
    ]
    cable = Link(nodes=names, rails=(rails[0],))
    switched = Link(nodes=("spark1",), switch="s", rails=(rails[1][:1],))
    inventory = Inventory.model_construct(links=(cable, switched))
    found = {name: [rail.peer for rail in devices] for name, devices in rails_of(inventory).items()}
    assert found == {"spark1": ["spark2", ""], "spark2": ["spark1"]}


@pytest.fixture
async def on_two(tmp_path):
    """A world of two nodes, with a group on both that has a rung on one of them."""
    world = World(tmp_path)
    world.nodes = FakeNodes(dict.fromkeys(("this", "that"), 100 * GIB))
    world.nodes.boots["that"] = "first"
    world.inventory_nodes = ("this", "that")
    world.restarted()
    ladder = (rung(nodes=("this", "that")), rung(nodes=("this",)))
    groups = (GroupPlan(ladder=ladder),)
    planned = plan(name="tiny").model_copy(update={"groups": groups})
    await world.controller.commands.put(deployment("tiny"), planned, "me")
    await world.look()
    return world


async def start_words(world, *away):
    """Words about the start of a group whose nodes are away, behind those about the nodes."""
    world.nodes.away = set(away)
    await world.look()
    return detail(world)[1].partition("; ")[2]


async def test_a_group_that_can_do_without_is_named_with_the_nodes_on_which_it_goes_on(on_two):
    assert await start_words(on_two, "that") == "if that lasts 4 min, its group starts on this (rung 2)"
    both = await start_words(on_two, "this", "that")
    assert both == "its group starts when that is back", "no rung does without both"


async def test_one_that_has_moved_is_named_with_the_nodes_that_it_has_left_and_that_are_back(on_two):
    standing = Standing(rung=1, passed=("that is gone",), vacated=(0,))
    on_two.controller.fleet.store.groups.set_standing("tiny", 1, 0, standing)
    assert await start_words(on_two, "this") == "its group starts when that is back", (
        "rung 1 has that node, too"
    )
    ladder = (rung(nodes=("that",)), rung(nodes=("this",)))
    planned = plan(name="tiny").model_copy(update={"groups": (GroupPlan(ladder=ladder),)})
    await on_two.controller.commands.put(deployment("tiny", concurrency=2), planned, "me")
    on_two.controller.fleet.store.groups.set_standing("tiny", 2, 0, standing)
    assert await start_words(on_two, "this") == "if that lasts 4 min, its group starts on that (rung 1)"


async def test_no_move_is_announced_of_a_group_whose_start_may_have_taken_the_node_down(on_two):
    await on_two.controller.reconcile()
    await on_two.controller.intake.report(report(phase=GroupPhase.STARTING))
    assert await start_words(on_two, "that") == "its group starts when that is back"
