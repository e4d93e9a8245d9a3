"""Waiting for deployments: it ends with their outcomes, and sends the step of each meanwhile."""

import pytest
from control_values import plan
from statuses import fleet

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus, NodeReport
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments.watch import starting_step, until_gone, until_settled
from sparkfleet.fleet.events import FactFound, FleetEvent, FleetStep, StepRunning
from sparkfleet.group.report import GroupPhase, GroupReport, RankReport
from sparkfleet.specs.deployment import Deployment


class Told:
    """A client of a controller that answers these, the last for ever."""

    def __init__(self, *answers, events=()):
        self.answers = list(answers)
        self._events = list(events)

    async def events(self, after, deployment=None, wait_s=0):
        return [event for event in self._events if event.id > after]

    async def fleet(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def deployment(name, state="starting", groups=(), detail=""):
    return DeploymentStatus(
        name=name, generation=1, state=state, detail=detail, who="", since=0.0, plan=None, groups=groups
    )


def fleet_of(**states):
    return fleet(*(deployment(name, state) for name, state in states.items()))


RANKS = (RankReport(rank=0, node="n"),)


def group(phase=GroupPhase.STARTING, step=None, detail="", generation=1, ranks=RANKS):
    return GroupReport(
        deployment="a",
        generation=generation,
        replica=0,
        phase=phase,
        step=step,
        detail=detail,
        ranks=ranks,
        node="n",
        since=0.0,
    )


def event(number, kind, name="a"):
    return Event(id=number, at=0.0, deployment=name, generation=1, subject="", kind=kind, message="")


async def test_it_ends_when_all_are_ready_or_have_failed():
    client = Told(fleet_of(a="starting", b="failed"), fleet_of(a="ready", b="failed"))
    settled = await until_settled(client, {"a": 1, "b": 1}, 0)
    assert {name: one.state for name, one in settled.items()} == {"a": "ready", "b": "failed"}


@pytest.mark.parametrize("after", [{}, {"a": "stopping"}])
async def test_what_somebody_else_deletes_is_not_waited_for_for_ever(after):
    client = Told(fleet_of(a="starting"), fleet_of(**after))
    with pytest.raises(ControlError, match="a: was deleted"):
        await until_settled(client, {"a": 1}, 0)


async def test_events_of_what_is_waited_for_are_sent_once_and_steps_between():
    told = [
        event(1, "deploy"),
        event(2, "progress"),
        event(3, "deploy", "other"),
        event(4, "preparing"),
        event(5, "ready"),
    ]
    client = Told(fleet_of(a="starting"), fleet_of(a="ready"), events=told)
    seen = []
    await until_settled(client, {"a": 1}, 0, seen.append)
    assert [one.event.kind for one in seen if isinstance(one, FleetEvent)] == ["deploy", "ready"]
    assert [one.step for one in seen if isinstance(one, StepRunning)] == [FleetStep.WAITING]


@pytest.mark.parametrize(
    ("report", "step", "detail"),
    [
        (
            group(GroupPhase.PREPARING, detail="training, step 7 of 400"),
            FleetStep.TRAINING,
            "training, step 7 of 400",
        ),
        (group(GroupPhase.PREPARING), FleetStep.STARTING_ENGINE, ""),
        (group(ranks=()), FleetStep.WAITING, ""),
        (group(), FleetStep.STARTING_ENGINE, ""),
        (group(step=StartupPhase(phase="loading", share=0.42)), FleetStep.LOADING, "42%"),
        (group(step=StartupPhase(phase="compiling"), detail="compiling"), FleetStep.COMPILING, ""),
        (group(step=StartupPhase(phase="warming")), FleetStep.WARMING_UP, ""),
        (group(step=StartupPhase(phase="up")), FleetStep.FIRST_TOKEN, ""),
        (
            group(GroupPhase.PROBING, StartupPhase(phase="up"), "requesting a first token"),
            FleetStep.FIRST_TOKEN,
            "requesting a first token",
        ),
        (group(generation=0), FleetStep.WAITING, "why it waits"),
    ],
)
def test_the_step_of_a_group(report, step, detail):
    found = starting_step([deployment("a", groups=(report,), detail="why it waits")])
    assert found == StepRunning(step=step, detail=detail, subjects=("a",))


def test_the_word_of_a_step_is_not_repeated_by_its_detail():
    """`status` printed "waiting waiting for memory"."""
    waits = group(detail="waiting for memory: n has 1.0 GiB", ranks=())
    assert starting_step([deployment("a", groups=(waits,))]) == StepRunning(
        step=FleetStep.WAITING, detail="for memory: n has 1.0 GiB", subjects=("a",)
    )


def test_of_several_groups_the_step_is_the_earliest():
    late, early = group(step=StartupPhase(phase="warming")), group(step=StartupPhase(phase="loading"))
    assert starting_step([deployment("b", groups=(late,)), deployment("a", groups=(early,))]) == StepRunning(
        step=FleetStep.LOADING, subjects=("a", "b")
    )


@pytest.mark.parametrize(
    ("groups", "others", "detail"), [(1, (), "40%"), (2, (), "g1/0: 40%"), (2, ("b",), "a/g1/0: 40%")]
)
def test_of_several_groups_of_a_deployment_the_one_that_starts_is_named(groups, others, detail):
    """During a rolling update "loading (a) · 40%" was printed for one after the other."""
    loading = group(step=StartupPhase(phase="loading", share=0.4))
    one = plan("a").groups
    starting = deployment("a", groups=(loading,)).model_copy(
        update={"plan": plan("a").model_copy(update={"groups": one * groups})}
    )
    found = starting_step([starting, *map(deployment, others)])
    assert found == StepRunning(step=FleetStep.LOADING, detail=detail, subjects=("a", *others))


async def test_nobody_is_told_ready_for_anothers_file():
    mine = Deployment(name="a", model="builtin:tiny", concurrency=4)
    theirs = mine.model_copy(update={"concurrency": 8})
    newer = deployment("a", "ready").model_copy(
        update={"generation": 2, "who": "anna@lab", "spec": theirs.model_dump_json(), "plan": plan("a")}
    )
    told = fleet_of(a="starting")
    client = Told(told, told.model_copy(update={"deployments": (newer,)}))
    with pytest.raises(ControlError, match="was replaced by generation 2 of anna@lab") as caught:
        await until_settled(client, {"a": 1}, 0, own={"a": mine})
    assert caught.value.means == (
        "No group of generation 1 serves any more. The newer one has concurrency: 4 → 8."
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"members": ((1, 0),)}, "g1/0 goes on in generation 2, without a restart."),
        ({"state": "updating"}, "g1/0 serves until generation 2 is ready."),
        ({"state": "failed"}, "g1/0 serves, as generation 2 did not start."),
        ({"state": "ready"}, "No group of generation 1 serves any more."),
        (
            {"state": "starting", "groups": (group(),)},
            "No group of generation 1 serves any more.",
        ),
    ],
)
async def test_what_is_left_of_a_generation_that_was_replaced_is_named(fields, words):
    """It was said not to serve, while it did."""
    there = {"generation": 2, "groups": (group(GroupPhase.READY),), "members": ((2, 0),)}
    newer = deployment("a").model_copy(update={**there, **fields})
    with pytest.raises(ControlError) as caught:
        await until_settled(Told(fleet(newer)), {"a": 1}, 0)
    assert caught.value.means == words


@pytest.mark.parametrize("silent", [None, 12.0])
async def test_the_end_of_a_deployment_on_a_node_without_power_has_its_reason(silent):
    """`delete` waited 50 s for it without a word."""
    ending = fleet(deployment("a", "stopping", (group(),)))
    node = NodeReport(name="n", joined=True, silent_s=silent)
    waiting, seen = ending.model_copy(update={"nodes": (node,)}), []
    await until_gone(Told(waiting, waiting, fleet()), "a", 0, seen.append)
    steps = [one for one in seen if isinstance(one, StepRunning)]
    assert [one.subjects for one in steps] == [("a",)] * 2
    assert {one.detail for one in steps} == {f"{group().name} {group().phase.value}"}
    facts = [one.line for one in seen if isinstance(one, FactFound)]
    assert len(facts) == (silent is not None)
    assert all(line.startswith("n does not answer: what a ran there counts as ended once") for line in facts)
