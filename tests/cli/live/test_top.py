"""`sparkfleet top` driven by textual's Pilot, over readings as `status` makes them."""

from contextlib import asynccontextmanager

import pytest
from textual.widgets import OptionList
from top_values import HOSTILE, NOW, Watched, away, deployment, event, group, overview

from sparkfleet.cli.live.top_app import TopApp
from sparkfleet.errors import NodeError
from sparkfleet.fleet.deployments import FleetCondition
from sparkfleet.group.report import GroupPhase

STEP_S = 0.05


class Terminal:
    """The running view, its fleet, and a clock that the test sets."""

    def __init__(self, answer):
        self.source, self.now = Watched(answer), NOW
        self.app = TopApp(self.source, clock=lambda: self.now, every_s=STEP_S)

    def shown(self):
        """Every line of the screen."""
        return "\n".join(
            "".join(segment.text for segment in strip).rstrip()
            for strip in self.app.screen._compositor.render_strips()
        )

    async def until(self, *words, gone=()):
        for _ in range(100):
            shown = self.shown()
            if all(word in shown for word in words) and not any(word in shown for word in gone):
                return shown
            await self.pilot.pause(STEP_S)
        raise AssertionError(f"{words} not shown, or {gone} is:\n{self.shown()}")


@asynccontextmanager
async def terminal(answer, width=100, height=30):
    one = Terminal(answer)
    async with one.app.run_test(size=(width, height)) as pilot:
        one.pilot = pilot
        yield one


async def test_it_shows_fleet_nodes_and_groups():
    async with terminal(overview(deployment(group()))) as one:
        shown = await one.until("fleet home · 2 nodes · 1 of 1 ready · 3 streams, 1 wait")
        assert "spark1 ██████████████████░░░░░░ 90.0 of 120.0 GiB used" in shown
        assert "big/g3/0 ready · rung 1 of 2 · spark1+spark2" in shown
        assert "3 of 16 requests running, 1 waiting" in shown
        assert "24.7 tok/s for one user (predicted 21–28)" in shown


async def test_a_speed_and_its_sparkline_follow_the_counter():
    async with terminal(overview(deployment(group(0.0)))) as one:
        await one.until("big/g3/0")
        one.now += 2
        one.source.answer = overview(deployment(group(50.0)))
        shown = await one.until("· 25.0 tok/s", "  25.0 tok/s █")
        assert "ago" not in shown


async def test_without_its_controller_the_last_values_stay_with_their_age():
    async with terminal(overview(deployment(group()))) as one:
        await one.until("big/g3/0")
        one.source.answer = away()
        one.now += 72
        shown = await one.until(
            "The controller does not answer. `sparkfleet doctor` looks closer.", "values of 1 min 12 s ago"
        )
        assert "big/g3/0 ready" in shown
        assert "90.0 of 120.0 GiB used" in shown
        one.source.answer = overview(deployment(group()))
        await one.until("big/g3/0", gone=("does not answer", "ago"))


async def test_an_unreachable_node_is_an_error_that_passes():
    async with terminal(NodeError("spark1 is off.", do="Switch it on.")) as one:
        await one.until("waiting for its controller", "spark1 is off. Switch it on.")
        one.source.answer = overview(deployment(group()))
        await one.until("big/g3/0", gone=("is off",))


async def test_a_lost_node_keeps_its_last_values():
    async with terminal(overview(deployment(group())), width=130) as one:
        await one.until("spark2")
        one.source.answer = overview(deployment(group(silent_s=20.0)), lost=("spark2",))
        one.now += 20
        shown = await one.until("2 nodes, 1 gone", "gone: Ray on it does not answer", "values of 20 s ago")
        (line,) = (line for line in shown.splitlines() if line.startswith("spark2"))
        assert "90.0 of 120.0 GiB used" in line
        assert "no report for 20 s; it was ready" in shown


async def test_a_fleet_that_is_down_is_named_with_what_starts_it():
    down = away()._replace(condition=FleetCondition.DOWN, trouble=None)
    async with terminal(down) as one:
        await one.until("Fleet home is down. `sparkfleet up` starts it.")


async def test_a_fleet_without_a_deployment_says_how_to_get_one():
    async with terminal(overview()) as one:
        await one.until("Nothing is deployed. `sparkfleet apply FILE` starts a deployment.")
        await one.pilot.press("l", "p")
        assert len(one.app.screen_stack) == 1
        one.source.answer = overview(deployment(group()))
        await one.until("big/g3/0", gone=("Nothing is deployed",))


async def test_a_start_shows_its_progress_and_text_of_engines_is_harmless():
    starting = group(phase=GroupPhase.PREPARING, detail=HOSTILE, measured={})
    async with terminal(overview(deployment(starting, state="starting"))) as one:
        shown = await one.until("big/g3/0 preparing", "[bold]5[/bold]")
        assert "\\x1b]0;hurt\\x07" in shown
        assert "\x1b" not in shown


async def test_the_choice_follows_its_group_when_others_come():
    first = overview(deployment(group()), deployment(name="small", state="failed", detail="no memory"))
    async with terminal(first) as one:
        await one.until("small failed · no memory")
        await one.pilot.press("down")
        more = (deployment(group(), group(replica=1)), deployment(name="small", state="failed"))
        one.source.answer = overview(*more)
        await one.until("big/g3/1")
        assert one.app.screen.query_one(OptionList).highlighted_option.id == "small"


async def test_the_log_of_each_rank_is_followed():
    async with terminal(overview(deployment(group()))) as one:
        await one.until("big/g3/0")
        await one.pilot.press("l")
        shown = await one.until("log of big, replica 0, rank 0 of 2 on spark1", "INFO started")
        assert "loading" not in shown, "a line is shown once it is whole"
        one.source.more.set()
        shown = await one.until("loading \\x1b[31m5 of 9")
        await one.pilot.press("n")
        await one.until("rank 1 of 2 on spark2", "rank one", gone=("INFO started",))
        await one.pilot.press("escape")
        await one.until("fleet home")


async def test_a_log_that_does_not_exist_is_named():
    async with terminal(overview(deployment(name="other", state="starting"))) as one:
        await one.until("other starting")
        await one.pilot.press("l")
        await one.until("other has no log yet.", "Wait.")


async def test_events_come_while_they_are_shown():
    answer = (deployment(group()),)
    async with terminal(overview(*answer, events=(event(1), event(2, "progress", "40 %")))) as one:
        await one.until("big/g3/0")
        await one.pilot.press("e")
        shown = await one.until("events of fleet home", "started in 21 s")
        assert "40 %" not in shown
        one.source.answer = overview(*answer, events=(event(1), event(3, "failed", HOSTILE)))
        shown = await one.until("\\x1b]0;hurt")
        assert shown.count("started in 21 s") == 1


async def test_the_plan_has_the_reasons():
    async with terminal(overview(deployment(group())), height=50) as one:
        await one.until("big/g3/0")
        await one.pilot.press("p")
        await one.until("plan of big", "rung 1 of 2", "nobody has seen it")


@pytest.mark.parametrize("width", [30, 45, 80, 200])
async def test_it_fits_every_width(width):
    async with terminal(overview(deployment(group()), lost=("spark2",)), width=width, height=40) as one:
        shown = await one.until("fleet home", "big/g3/0")
        assert "".join(shown.split()).count("GiBused") == 1
        assert "3 of 16 requests running" in " ".join(shown.split())


async def test_q_ends_it():
    async with terminal(overview(deployment(group()))) as one:
        await one.until("big/g3/0")
        await one.pilot.press("e")
        await one.until("events of")
        await one.pilot.press("q")
        await one.pilot.pause()
        assert not one.app.is_running
