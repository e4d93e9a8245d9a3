import asyncio

import pytest
from statuses import deployment, fleet, report
from textual.widgets import DataTable, RichLog, Static

from sparkfleet.cli.top.app import NARROW, TopApp
from sparkfleet.cli.top.text_page import TextPage
from sparkfleet.controlplane.state.status import NodeReport, OnDemandStatus
from sparkfleet.errors import ControlError, UnreachableError
from sparkfleet.fleet.deployments.status import FleetCondition, FleetOverview
from sparkfleet.gateway.report import EntryReport, GatewayReport
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB

WIDE = (160, 40)
EVERY_S = 0.2
"""Between readings: each one draws the screen, and a key is taken when the screen is done."""


class Fleet:
    """A fleet as the view reads it and its pages show it."""

    def __init__(self):
        nodes = (NodeReport(name="spark1", joined=True, memory_total=120 * GIB, memory_available=12 * GIB),)
        other = deployment(report(deployment="small", tokens=7.0)).model_copy(update={"name": "small"})
        status = fleet(deployment(report(tokens=5.0, running=3)), other, nodes=nodes)
        self.found = FleetOverview(FleetCondition.UP, status)
        self.asked = []

    async def read(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def log(self, deployment, replica, generation):
        self.asked.append(("log", deployment, replica, generation))
        yield "\x1b]0;title\x07INFO [red]ready[/red]"
        yield "x" * (WIDE[0] - 10)
        await asyncio.sleep(60)

    async def events(self, deployment):
        self.asked.append(("events", deployment))
        raise ControlError("The fleet is down.", do="sparkfleet up")

    async def reasons(self, deployment):
        self.asked.append(("reasons", deployment))
        return ("choice   spark1", "why   highest throughput")


@pytest.fixture
def world():
    return Fleet()


def app(world):
    return TopApp(world.read, world, every_s=EVERY_S)


def shown(pilot, which):
    table = pilot.app.query_one(which, DataTable)
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


def words(pilot, which):
    return str(pilot.app.query_one(which, Static).render())


async def until(pilot, condition):
    async with asyncio.timeout(20):
        while not condition():
            await pilot.pause(0.02)


async def opened(pilot, key):
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, TextPage) and pilot.app.screen.query(RichLog))
    log = pilot.app.screen.query_one(RichLog)
    await until(pilot, lambda: log.lines)
    return "\n".join(line.text for line in log.lines)


async def test_nodes_and_groups(world):
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        assert "fleet home" in words(pilot, "#head")
        assert "3 requests running" in words(pilot, "#head")
        assert shown(pilot, "#nodes") == [["spark1", "joined", "██████████████░░ 108 of 120 GiB", "–", "–"]]
        first, second = shown(pilot, "#groups")
        assert first[:3] == ["big/g3/0", "ready", "spark1+spark2 · TP=2"]
        assert "3 of 16" in first
        assert first[-1] == "24.7 tok/s (predicted 21–28)"
        assert second[0] == "small/g3/0"


async def test_a_lower_rung_is_named(world):
    status = fleet(deployment(report(rung=1), report(1), planned=2))
    world.found = FleetOverview(FleetCondition.UP, status)
    async with app(world).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        assert [row[1] for row in shown(pilot, "#groups")] == ["ready rung 2", "ready"]


def with_entries(world, *, lost):
    """A fleet of eight, of which seven nodes have an address of the endpoint."""
    names = tuple(f"spark{number}" for number in range(1, 9))
    entries = tuple(
        EntryReport(
            node=name, url=f"http://192.168.100.{at}:8000/v1", listening=name not in lost, connections=at
        )
        for at, name in enumerate(names[1:], 2)
    )
    nodes = tuple(
        NodeReport(name=name, joined=True, memory_total=120 * GIB, memory_available=9 * GIB) for name in names
    )
    world.found = FleetOverview(
        FleetCondition.UP, world.found.status.model_copy(update={"nodes": nodes, "entries": entries})
    )


async def test_each_node_has_its_address_of_the_endpoint(world):
    with_entries(world, lost=("spark3",))
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#nodes"))
        assert [row[-1] for row in shown(pilot, "#nodes")[:3]] == [
            "–",
            "http://192.168.100.2:8000/v1 · 2 connections",
            "http://192.168.100.3:8000/v1 · not reached",
        ]
        assert pilot.app.query_one("#nodes", DataTable).virtual_size.width <= NARROW
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "addresses" in words(pilot, "#note"))
        assert words(pilot, "#note") == (
            "further addresses of the endpoint: 7, not reached: spark3 · `sparkfleet status` lists them"
        )
        assert pilot.app.query_one("#nodes", DataTable).virtual_size.width <= 80
        with_entries(world, lost=())
        await until(pilot, lambda: "7, all reached" in words(pilot, "#note"))
        world.found = Fleet().found
        await until(pilot, lambda: not pilot.app.query_one("#note", Static).display)


async def test_addresses_that_come_later_leave_the_selected_group(world):
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: len(shown(pilot, "#groups")) == 2)
        await pilot.press("down")
        with_entries(world, lost=())
        await until(pilot, lambda: len(shown(pilot, "#nodes")) == 8)
        assert pilot.app._selected().deployment == "small"


async def test_a_fleet_without_a_deployment_names_the_command(world):
    world.found = FleetOverview(FleetCondition.UP, fleet())
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "`sparkfleet apply FILE`" in words(pilot, "#note"))
        assert "http://192.168.1.20:8000/v1" in words(pilot, "#head")


async def test_the_reason_of_the_selected_group_is_shown_whole(world):
    reason = "no rung is left: out of memory on spark2 at 0.92 of 128 GB"
    groups = (report(running=1), report(1, phase=GroupPhase.FAILED, detail=reason))
    world.found = FleetOverview(FleetCondition.UP, fleet(deployment(*groups, planned=2)))
    async with app(world).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(pilot, "#groups")) == 2)
        assert shown(pilot, "#groups")[1][1] == "failed no rung i…"
        assert not pilot.app.query_one("#note", Static).display
        await pilot.press("down")
        await until(pilot, lambda: words(pilot, "#note") == f"big/g3/1: {reason}")


async def test_open_connections_of_a_custom_workload_are_named_as_such(world):
    one = deployment(report(engine="custom", running=3))
    world.found = FleetOverview(FleetCondition.UP, fleet(one))
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        assert "3 conn." in shown(pilot, "#groups")[0]
        assert "0 requests running" in words(pilot, "#head")


async def test_a_fleet_that_was_never_read_has_no_figures(world):
    world.found = FleetOverview(FleetCondition.UNREACHABLE, fleet(), UnreachableError("no answer"))
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "no answer" in words(pilot, "#trouble"))
        assert words(pilot, "#head") == "fleet home · unreachable"
        assert not pilot.app.query_one("#note", Static).display, "it is not known what is deployed"


async def test_a_narrow_terminal_has_fewer_columns(world):
    async with app(world).run_test(size=(NARROW - 20, 24)) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        assert len(shown(pilot, "#groups")[0]) == 6
        await pilot.resize_terminal(*WIDE)
        await until(pilot, lambda: len(shown(pilot, "#groups")[0]) == 10)


async def test_long_names_do_not_push_the_figures_out_of_sight(world):
    long = "x" * 63
    nodes = tuple(NodeReport(name=f"{long}{number}", joined=True) for number in range(64))
    group = report(phase=GroupPhase.FAILED, detail="y" * 200, deployment=long, running=3)
    status = fleet(deployment(group).model_copy(update={"name": long}), nodes=nodes)
    world.found = FleetOverview(FleetCondition.UP, status)
    async with app(world).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        await pilot.pause(2 * EVERY_S)
        for which in ("#nodes", "#groups"):
            assert pilot.app.query_one(which, DataTable).virtual_size.width <= 80
        assert shown(pilot, "#groups")[0][0] == f"{'x' * 11}…{'x' * 3}/g3/0"
        assert len(shown(pilot, "#nodes")) == 64


async def test_keys_open_the_pages_of_the_selected_group_which_stays_selected(world):
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: len(shown(pilot, "#groups")) == 2)
        await pilot.press("down")
        await pilot.pause(2 * EVERY_S)  # some readings
        assert await opened(pilot, "r") == "choice   spark1\nwhy   highest throughput"
        await pilot.press("l")  # no page from a page
        await pilot.press("escape")
        assert "\\x1b]0;title\\x07INFO [red]ready[/red]" in await opened(pilot, "l")
        log = pilot.app.screen.query_one(RichLog)
        await until(pilot, lambda: len(log.lines) > 1)
        assert len(log.lines) == 2  # as wide as the terminal
        await pilot.resize_terminal(NARROW - 20, 24)  # readings and sizes go on below a page
        await pilot.pause(2 * EVERY_S)
        await pilot.resize_terminal(*WIDE)
        await pilot.press("escape")
        assert "The fleet is down." in await opened(pilot, "e")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, TextPage))
        assert world.asked == [("reasons", "small"), ("log", "small", 0, 3), ("events", "small")]


async def test_a_controller_that_does_not_answer_leaves_the_rows_and_is_named(world):
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        good = world.found
        error = UnreachableError("spark1 does not answer.", do="Look at it.")
        world.found = FleetOverview(FleetCondition.UNREACHABLE, fleet(), error)
        await until(pilot, lambda: "spark1 does not answer." in words(pilot, "#trouble"))
        assert "unreachable" in words(pilot, "#head")
        assert len(shown(pilot, "#groups")) == 2
        world.found = ControlError("an older controller")
        await until(pilot, lambda: "an older controller" in words(pilot, "#trouble"))
        world.found = good
        await until(pilot, lambda: not pilot.app.query_one("#trouble", Static).display)


async def test_an_empty_fleet_and_its_keys(world):
    world.found = FleetOverview(FleetCondition.DOWN, fleet())
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "`sparkfleet up` starts it" in words(pilot, "#trouble"))
        await pilot.press("l", "e", "r", "enter")
        assert not isinstance(pilot.app.screen, TextPage)
        await pilot.press("q")
    assert world.asked == []


async def test_a_reading_that_does_not_come_back_makes_the_figures_old(world, monkeypatch):
    monkeypatch.setattr("sparkfleet.cli.top.app.OLD_S", 0.1)
    async with app(world).run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))

        async def hangs():
            await asyncio.sleep(60)

        pilot.app._read_fleet = hangs
        await until(pilot, lambda: "s old" in words(pilot, "#head"))
        assert len(shown(pilot, "#groups")) == 2


@pytest.mark.parametrize("page", [False, True])
async def test_ctrl_c_ends_it_as_any_verb(world, page):
    """Textual copied a selection instead, and `top` went on."""
    view = app(world)
    async with view.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        if page:
            await opened(pilot, "l")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: view.return_code is not None)
    assert view.return_code == 130


async def test_one_that_is_unloaded_has_the_requests_that_wait_for_it_and_the_command_that_starts_it(world):
    """Its row had none of them, though the headline counted them."""
    asleep = deployment(state="unloaded", detail="it starts once small ends").model_copy(
        update={"on_demand": True, "demand": OnDemandStatus(waits_s=42.0, start_s=95.0)}
    )
    gateway = GatewayReport(replica="g", url="", metrics_url="", at=0.0, waiting=2, queued={"big": 2})
    world.found = FleetOverview(FleetCondition.UP, fleet(asleep, gateways=(gateway,)))
    async with app(world).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(pilot, "#groups"))
        (row,) = shown(pilot, "#groups")
        assert row[0] == "big"
        assert row[1].startswith("unloaded")
        assert row[-1] == "2"
        await until(pilot, lambda: "is on demand" in words(pilot, "#note"))
        assert words(pilot, "#note").splitlines()[-1] == (
            "big is on demand: a request has waited 42 s; its last start took 1 min 35 s"
            " · `sparkfleet load big` starts it now"
        )
