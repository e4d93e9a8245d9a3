"""From an engine's own counters through the controller and its store to the plan, and to the words for the file."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import yaml
from controller_world import World

from sparkfleet.cli.deployment import describe
from sparkfleet.cli.fleet import top
from sparkfleet.cli.planning import plan as planning
from sparkfleet.cli.top.cells import notes
from sparkfleet.controlplane.draft_collector import WRITE_S
from sparkfleet.controlplane.policy.state import Now
from sparkfleet.controlplane.state.tables.draft_traffic import DraftCounts, DraftSetup, DraftTraffic
from sparkfleet.controlplane.views.page_view import page_view
from sparkfleet.controlplane.views.speculation_advice import acceptances_of, advice_for, advice_lines
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.fleet.deployments.status import DescribedDeployment, FleetCondition, FleetOverview
from sparkfleet.fleet.planning.fleet_decision import decide
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.fleet.report.live_view import LiveReadings
from sparkfleet.fleet.report.status_lines import fleet_lines
from sparkfleet.group.engine_load import read_load
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.hostfacts.node import Gpu, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.latency.local_acceptance import CLEARLY, ENOUGH_STEPS
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.deployment import Deployment

MODEL = "Qwen/Qwen3.6-27B-FP8"
KNOWN = {MODEL: known_checkpoint(MODEL)}
NOON = 1_795_176_000.0
PROSE = (0.4, 0.02, 0.0)
"""Chance of the first, two and three draft tokens: 1.42 tokens per step, as German prose had (hasso5703, issue 12). With one
chance for all positions no depth would be 1.15 times as fast."""
HOPELESS = (0.08, 0.02, 0.0)
MTP = Speculation(method="mtp", tokens=3)
USUAL = (0.77, 0.6, 0.44)


def spec(**fields):
    return Deployment.model_validate(
        {"name": "m", "model": MODEL, "engine": "vllm", "context": 32768, "concurrency": 4} | fields
    )


@pytest.fixture
def fleet():
    facts = NodeFacts(
        name="this",
        memory=UnifiedMemory(total=130_600_000_000, available=118_000_000_000),
        processors=Processors(count=20, machine="aarch64"),
        gpu=Gpu(name="NVIDIA GB10", driver="580.142"),
        engines={},
    )
    return Fleet(name="home", nodes=(facts,), assumed=("this",))


class Page:
    """vLLM's metrics page."""

    def __init__(self, steps, chances):
        accepted = [steps * chance for chance in chances]
        positions = "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="{at}"}} {one}\n'
            for at, one in enumerate(accepted)
        )
        self.text = (
            f'vllm:spec_decode_num_drafts_total{{model_name="m"}} {steps}\n'
            f'vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {steps * len(chances)}\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {sum(accepted)}\n{positions}'
        )

    async def page(self, path):
        return self.text


class Running:
    """A controller on fakes with one deployment, whose engine's metrics are vLLM's."""

    def __init__(self, tmp_path, fleet, spec):
        self.world = World(tmp_path)
        self.fleet, self.spec, self.now = fleet, spec, NOON
        self.world.store.now = lambda: self.now
        self.generation = 0
        self.restart()

    def restart(self):
        self.world.restarted(clocks=lambda: Now(unix=self.now, steady=self.now - NOON + 1000.0))

    async def apply(self, spec=None):
        """Plans a file with what is known, and applies it, as `apply` does."""
        self.spec = spec or self.spec
        (one,) = decide([self.spec], self.fleet, self.status if self.generation else None, KNOWN).planned
        desired, _ = await self.world.controller.commands.put(self.spec, one.plan, "me")
        self.generation = desired.generation
        return one

    async def serve(self, hours, chances, steps=1_000):
        """Requests of so many hours, on an engine that has just started."""
        candidate = self.world.store.deployments.desired()["m"].plan.groups[0].choice.candidate
        for hour in range(hours + 1):
            self.now += 3600.0 + WRITE_S
            load = await read_load(
                Page(20 + steps * hour, chances), engine_by_name("vllm"), candidate.speculation.tokens
            )
            await self.world.controller.intake.report(
                GroupReport(
                    deployment="m", generation=self.generation, phase=GroupPhase.READY, node="this", since=NOON,
                    drafted=load.drafted, accepted=load.accepted, draft_steps=load.draft_steps,
                    accepted_by_position=load.accepted_by_position,
                )
            )  # fmt: skip

    @property
    def status(self):
        return self.world.controller.queries.status()

    @property
    def shown(self):
        (one,) = self.status.deployments
        return one

    def planned(self, spec=None):
        """A plan of a file beside what runs."""
        one = spec or self.spec
        decision = decide([one], self.fleet, self.status, KNOWN)
        return FleetPlan((one,), self.fleet, self.status, decision, None, KNOWN)


@pytest.fixture
async def here(tmp_path, fleet):
    running = Running(tmp_path, fleet, spec())
    await running.apply()
    yield running
    running.world.store.close()


def candidate(found):
    return found.decision.plan.of("m").groups[0].choice.candidate


async def test_prose_that_a_draft_guesses_badly_is_advice_that_can_be_typed(here):
    """It serves MTP k=3 as published; its own requests have 1.42 tokens per step where 2.81 were published."""
    await here.serve(13, PROSE)
    here.restart()  # nothing of it is in memory alone
    found = here.planned()
    (advice,) = found.speculation()["m"]
    assert (advice.steps, advice.measured) == (13_000, pytest.approx(1.42))
    assert advice.published == pytest.approx(2.81, abs=0.01)
    assert advice.best is not None
    assert advice.best.tps >= CLEARLY * advice.now
    line = " ".join(" ".join(advice_lines((advice,))).split())
    assert "your traffic: 1.42 tokens per step over 13,000 steps (published 2.81)" in line
    assert f"now {advice.now:.3g} tok/s" in line
    words = re.search(r"in the file: `(.*)`", line)[1]

    # Typed into the file it is another plan, with the speed that was promised.
    typed = spec(**yaml.safe_load(words))
    after = here.planned(typed)
    assert after.decision.planned[0].change.verb == "change"
    assert candidate(after).speculation.tokens == advice.best.speculation.tokens
    tps = after.decision.plan.of("m").groups[0].choice.prediction.decode_tps_per_request.mid
    assert tps == pytest.approx(advice.best.tps, rel=0.02)


async def test_what_runs_goes_on_whatever_was_counted(here):
    before = candidate(here.planned())
    await here.serve(13, PROSE)
    (one,) = here.planned().decision.planned
    assert one.change.verb == "keep"
    assert candidate(here.planned()) == before


async def test_an_edit_that_starts_the_engine_again_takes_the_depth_for_these_requests(here):
    await here.serve(13, PROSE)
    edited = here.planned(spec(context=16384))
    assert edited.decision.planned[0].change.verb == "change"
    prediction = edited.decision.plan.of("m").groups[0].choice.prediction
    assert candidate(edited).speculation.tokens < 3
    assert prediction.decode_tps_per_request.mid == pytest.approx(
        here.planned().speculation()["m"][0].options[0].tps, rel=0.02
    )
    pinned = here.planned(spec(context=16384, speculation={"method": "mtp", "tokens": 3}))
    assert candidate(pinned).speculation.tokens == 3, "the file's own depth is kept"
    rung = pinned.decision.plan.of("m").groups[0].choice
    assert rung.prediction.accepted == pytest.approx(1.42, abs=0.01)


async def test_text_that_is_guessed_better_than_published_gets_a_deeper_draft(here):
    await here.serve(13, (0.95, 0.9, 0.85))
    (advice,) = here.planned().speculation()["m"]
    deeper = max((one.speculation.tokens for one in advice.options), default=0)
    assert deeper > 3
    assert advice.options[0].speculation.tokens == deeper


async def test_if_drafts_cost_more_than_they_bring_none_is_advised(here):
    await here.serve(13, HOPELESS)
    (advice,) = here.planned().speculation()["m"]
    assert advice.best.choice == "speculation: none"
    plain = plan_fleet([spec(speculation="none")], here.fleet, KNOWN).of("m").groups[0].choice
    assert advice.best.tps == pytest.approx(plain.prediction.decode_tps_per_request.mid, rel=0.02)


async def test_usual_text_needs_no_other_depth(here):
    await here.serve(13, USUAL)
    (advice,) = here.planned().speculation()["m"]
    assert advice.best is None
    assert candidate(here.planned(spec(context=16384))).speculation.tokens == 3
    assert "nothing is 1.15× as fast" in " ".join(advice_lines((advice,)))


async def test_too_few_steps_are_shown_and_change_nothing(here):
    await here.serve(3, PROSE)
    found = here.planned(spec(context=16384))
    assert acceptances_of(here.status) == {}
    assert candidate(found).speculation.tokens == 3
    (advice,) = found.speculation()["m"]
    assert (advice.enough, advice.options) == (False, ())
    assert f"plans use it from {ENOUGH_STEPS:,} steps on" in " ".join(advice_lines((advice,)))


async def test_describe_and_status_have_the_same_words(here, capsys):
    await here.serve(13, PROSE)
    described = " ".join(line.strip() for line in advice_lines(advice_for(here.shown)))
    (advice,) = here.planned().speculation()["m"]
    assert described == " ".join(line.strip() for line in advice_lines((advice,)))
    describe._show(DescribedDeployment(here.shown, ()))
    assert f"`{advice.best.choice}`" in capsys.readouterr().out
    planning.print_plans(here.planned())
    assert f"`{advice.best.choice}`" in capsys.readouterr().out
    lines = "\n".join(fleet_lines(here.status, (), here.now, lambda _: None, "m"))
    assert "your traffic: 1.42 tokens per step (published 2.81)\n" in lines
    assert "MTP k=1 is faster: `sparkfleet describe m`" in lines
    assert max(map(len, lines.splitlines())) <= 80


async def test_the_page_and_top_have_the_words_of_describe(here, monkeypatch):
    await here.serve(13, PROSE)
    described = " ".join(line.strip() for line in advice_lines(advice_for(here.shown)))
    (shown,) = page_view(here.status, here.world.inventory(), (), here.now).deployments
    (words,) = shown.speculation
    assert described == f"speculation {words}"
    overview = FleetOverview(FleetCondition.UP, here.status)
    view = LiveReadings().add(overview, 1.0)
    assert f"m speculation: {words}" in notes(view, view.groups[0], narrow=True)

    async def described_of(session, name):
        return DescribedDeployment(here.shown, ())

    monkeypatch.setattr(top, "describe_deployment", described_of)
    session = SimpleNamespace(inventory=here.world.inventory())
    assert (await top.SessionPages(session).reasons("m"))[-1] == advice_lines(advice_for(here.shown))[-1]


async def test_usual_text_has_its_figures_on_the_page_and_no_note_in_top(here):
    await here.serve(13, USUAL)
    (shown,) = page_view(here.status, here.world.inventory(), (), here.now).deployments
    assert "nothing is 1.15× as fast" in shown.speculation[0]
    view = LiveReadings().add(FleetOverview(FleetCondition.UP, here.status), 1.0)
    assert list(notes(view, view.groups[0], narrow=True)) == []


async def test_a_file_with_another_draft_has_nothing_of_the_former(here):
    """Its counts come back with it: the same draft on the same requests."""
    await here.serve(13, PROSE)
    await here.apply(spec(speculation="none"))
    assert here.planned().speculation() == {}
    await here.apply(spec(speculation={"method": "mtp", "tokens": 3}))
    (advice,) = here.planned().speculation()["m"]
    assert advice.steps == 13_000


async def test_a_depth_is_judged_by_what_another_one_has_counted(here):
    """After the advice was taken, two more draft tokens are still those of the same text."""
    await here.serve(13, PROSE)
    await here.apply(spec(speculation={"method": "mtp", "tokens": 1}))
    await here.serve(13, PROSE[:1])
    (advice,) = here.planned().speculation()["m"]
    assert advice.measured == pytest.approx(1.40, abs=0.01)
    assert advice.best is None
    one, three = acceptances_of(here.status)["m"]
    assert {one.tokens, three.tokens} == {1, 3}


async def test_a_plan_of_an_earlier_release_has_no_depths_and_names_the_command(here):
    await here.serve(13, PROSE)
    now = here.shown
    (group,) = now.plan.groups
    rung = group.choice.model_copy(
        update={"prediction": group.choice.prediction.model_copy(update={"depths": None})}
    )
    old = now.plan.model_copy(update={"groups": (group.model_copy(update={"ladder": (rung,)}),)})
    stored = now.model_copy(update={"plan": old})
    assert "`sparkfleet plan` with its file" in " ".join(advice_lines(advice_for(stored)))
    (advice,) = advice_for(stored, here.planned().decision.plan.of("m"))
    assert advice.best is not None


async def test_a_deployment_without_speculation_has_no_line(tmp_path, fleet):
    running = Running(tmp_path, fleet, spec(speculation="none"))
    await running.apply()
    await running.serve(13, PROSE)
    assert running.planned().speculation() == {}
    assert advice_lines(advice_for(running.shown)) == []
    running.world.store.close()


async def test_of_an_option_that_is_refused_the_next_is_advised(here, monkeypatch):
    await here.serve(13, PROSE)
    found = here.planned()
    first = found.speculation()["m"][0].best

    def refused(self, spec, wanted):
        return None if wanted == first.speculation else found.decision.plan

    monkeypatch.setattr("sparkfleet.fleet.planning.replanning.Replanning.with_speculation", refused)
    (advice,) = found.speculation()["m"]
    assert first not in advice.options


async def test_for_throughput_all_requests_together_are_compared(tmp_path, fleet):
    running = Running(tmp_path, fleet, spec(objective="throughput", concurrency=16))
    await running.apply()
    await running.serve(13, PROSE)
    (advice,) = running.planned().speculation()["m"]
    assert advice.shared_by == 16
    assert f"tok/s shared by {advice.shared_by}" in " ".join(advice_lines((advice,)))
    none = next(one for one in advice.options if one.speculation.method == "none")
    plain = plan_fleet([spec(objective="throughput", concurrency=16, speculation="none")], fleet, KNOWN)
    together = plain.of("m").groups[0].choice.prediction.decode_tps_aggregate.mid
    assert none.tps == pytest.approx(together, rel=0.1)
    running.world.store.close()


async def test_groups_on_cpus_have_their_counts_and_no_comparison(tmp_path):
    """The lab's engines: nothing is predicted for them."""
    world = World(tmp_path)
    await world.put(speculation=MTP)
    (one,) = world.controller.queries.status().deployments
    counts = DraftCounts(steps=7_000, proposed=21_000, accepted=7_000)
    setup = DraftSetup(model="builtin:tiny", engine="vllm", speculation=MTP)
    traffic = DraftTraffic(setup=setup, since=NOON, steps=7_000, counts=counts)
    (advice,) = advice_for(one.model_copy(update={"drafts": (traffic,)}))
    assert advice.best is None
    assert "no speed is predicted" in " ".join(advice_lines((advice,)))
    world.store.close()
