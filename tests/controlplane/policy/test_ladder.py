import pytest
from rungs import rung as rung_on
from rungs import sglang_rung as rung

from sparkfleet.controlplane.policy.ladder import TOOK_DOWN, passed_by, rung_with_less, rung_without, step
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Cause, Diagnosis
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import GroupPlan

LADDER = GroupPlan(ladder=(rung("nextn", 22.6), rung("ngram", 12.7), rung("none", 11.5)))


def diagnosis(cause):
    return Diagnosis(cause=cause, rule="sglang-nextn-prealloc-oom", summary="the draft pool is sized first")


def test_the_next_rung_with_the_reason_and_what_is_lost():
    taken = step(LADDER, Standing(), diagnosis(Cause.KNOWN))
    why = "known issue sglang-nextn-prealloc-oom: the draft pool is sized first"
    assert (taken.verb, taken.standing) == ("next", Standing(rung=1, passed=(why,)))
    assert "sglang-nextn-prealloc-oom" in taken.words
    assert "predicted 12.7 instead of 22.6 tok/s" in taken.words


@pytest.mark.parametrize("cause", [Cause.PORT, Cause.TRANSIENT])
def test_what_may_pass_is_tried_once_more(cause):
    first = step(LADDER, Standing(), diagnosis(cause))
    assert (first.verb, first.standing) == ("again", Standing(rung=0, tries=1))
    second = step(LADDER, first.standing, diagnosis(cause))
    assert (second.verb, second.standing.rung) == ("next", 1)


def without_tool(*nodes):
    return Diagnosis(cause=Cause.TOOL, summary="docker did not answer in 15 s", nodes=nodes)


def test_a_container_tool_that_is_away_takes_no_rung_and_no_group():
    """It comes back, and then the first rung starts."""
    standing = Standing()
    for _ in range(20):
        taken = step(LADDER, standing.model_copy(update={"restarts": 3}), without_tool("spark1"))
        assert (taken.verb, taken.standing) == ("again", Standing(rung=0, tries=1))
        standing = taken.standing
    assert taken.words == (
        "container tool: docker did not answer in 15 s; trying again: no other rung does without it"
    )


def test_a_rung_on_nodes_with_a_container_tool_is_taken_after_a_second_try():
    ladder = GroupPlan(
        ladder=(
            rung_on("spark1", "spark2", method="mtp"),
            rung_on("spark1", "spark2"),
            rung_on("spark1"),
        )
    )
    first = step(ladder, Standing(), without_tool("spark2"))
    assert first.verb == "again"
    second = step(ladder, first.standing, without_tool("spark2"))
    assert (second.verb, second.standing.rung) == ("next", 2)
    assert second.standing.passed[1] == "the container tool of spark2 does not work"


def test_at_the_end_of_the_ladder_it_stops_and_says_so():
    taken = step(LADDER, Standing(rung=2, passed=("one", "two")), diagnosis(Cause.MEMORY))
    assert taken.verb == "end"
    assert "none of 3 rungs started" in taken.words
    assert taken.standing.given_up
    assert taken.standing.passed[:2] == ("one", "two")
    assert taken.standing.passed[2].startswith("out of memory")


def test_what_an_earlier_release_did_not_write_down_is_not_known():
    assert passed_by(Standing(rung=2, passed=("one",)), 4, "it starved") == (
        "one",
        "not known",
        "it starved",
        "it starved",
    )
    taken = step(LADDER, Standing(rung=1), diagnosis(Cause.MEMORY))
    assert taken.standing.passed[0] == "not known"
    assert taken.standing.passed[1].startswith("out of memory")


def test_on_another_rung_starts_are_counted_anew_and_falls_are_not():
    before = Standing(tries=1, restarts=3, falls=(1.0, 2.0))
    assert step(LADDER, before, diagnosis(Cause.MEMORY)).standing.model_dump() == {
        **Standing(rung=1, falls=(1.0, 2.0)).model_dump(),
        "passed": ("out of memory sglang-nextn-prealloc-oom: the draft pool is sized first",),
    }
    again = step(LADDER, Standing(restarts=3, falls=(1.0,)), diagnosis(Cause.TRANSIENT)).standing
    assert again == Standing(tries=1, falls=(1.0,))


def test_without_a_diagnosis_it_goes_on_all_the_same():
    assert step(LADDER, Standing(), None).verb == "next"


def test_it_always_ends():
    for cause in Cause:
        standing, steps = Standing(), 0
        while (taken := step(LADDER, standing, diagnosis(cause))).verb != "end":
            standing, steps = taken.standing, steps + 1
        assert steps <= 2 * len(LADDER.ladder)


def test_a_rung_on_other_nodes_is_found():
    group = GroupPlan(ladder=(rung("mtp"), rung("mtp", node="spark2"), rung("none", node="spark2")))
    assert rung_without(group, {"spark1"}) == 1
    assert rung_without(group, {"spark2"}) == 0
    assert rung_without(group, {"spark1", "spark2"}) is None


def test_a_rung_that_needs_less_memory_is_found():
    def needs(size):
        one = rung("none")
        band = Band(low=0.0, mid=size, high=size)
        return one.model_copy(update={"prediction": Prediction(memory_bytes_per_rank=band)})

    group = GroupPlan(ladder=(needs(9.0), needs(9.5), needs(5.0), needs(7.0)))
    assert [rung_with_less(group, at) for at in range(4)] == [2, 2, None, None]
    nodes = group.ladder[2].candidate.shape.nodes
    assert rung_with_less(group, 0, away=nodes) is None, "what waits for a node serves nobody"
    assert rung_with_less(group, 0, away=("elsewhere",)) == 2


def test_a_rung_on_a_drained_node_is_left_out():
    ladder = GroupPlan(ladder=(rung("nextn"), rung("none", node="spark2"), rung("none")))
    taken = step(ladder, Standing(), diagnosis(Cause.MEMORY), {"spark2"})
    assert (taken.verb, taken.standing.rung) == ("next", 2)
    assert taken.standing.passed[1] == "spark2 is drained"
    assert step(ladder, Standing(), diagnosis(Cause.MEMORY)).standing.rung == 1


def test_a_ladder_whose_other_rungs_are_on_drained_nodes_ends_there():
    ladder = GroupPlan(ladder=(rung("nextn"), rung("none", node="spark2")))
    taken = step(ladder, Standing(), diagnosis(Cause.MEMORY), {"spark2"})
    assert (taken.verb, taken.standing.given_up) == ("end", True)
    assert taken.words.endswith("; the other rungs are left out: spark2 is drained")


class TestGoneNodes:
    """The first rung has spark1; those below have the others, one of which is gone."""

    LADDER = GroupPlan(ladder=(rung("none"), rung("none", node="spark2"), rung("none", node="spark3")))

    def test_a_rung_that_needs_one_is_left_out_with_the_reason(self):
        taken = step(self.LADDER, Standing(), diagnosis(Cause.MEMORY), gone={"spark2"})
        assert (taken.verb, taken.standing.rung) == ("next", 2)
        assert taken.standing.passed[1] == "spark2 is gone"

    def test_it_is_taken_if_no_other_is_left_and_waits_there(self):
        taken = step(self.LADDER, Standing(), diagnosis(Cause.KNOWN), gone={"spark2", "spark3"})
        assert (taken.verb, taken.standing.rung) == ("next", 1)

    def test_one_that_was_refused_its_memory_stays_where_that_may_become_free(self):
        refused = Diagnosis(cause=Cause.MEMORY, summary="other models have it", began=False)
        taken = step(self.LADDER, Standing(rung=1), refused, gone={"spark3"})
        assert (taken.verb, taken.standing.rung, taken.standing.refused) == ("end", 1, 1)
        assert (
            "the other rungs are left out: spark3 is gone; it starts once more when that memory is free"
            in (taken.words)
        )

    def test_a_group_that_does_not_start_elsewhere_waits_for_the_node_that_it_left(self):
        ladder = GroupPlan(ladder=(rung("mtp"), rung("none"), rung("none", node="spark2")))
        moved = Standing(rung=2, passed=("spark1 is gone", "spark1 is gone"), vacated=(0, 1))
        back = step(ladder, moved, diagnosis(Cause.KNOWN), gone={"spark1"})
        assert (back.verb, back.standing.rung, back.standing.vacated, back.standing.passed) == (
            "next",
            0,
            (),
            (),
        )
        assert "spark2 · sglang · no speculation did not start" in back.standing.bound
        assert back.words.endswith("; it starts as spark1 · sglang · MTP k=3 when the nodes of that are back")
        assert rung_without(ladder, {"spark1"}, own=bool(back.standing.bound)) is None, "not to and fro"

    def test_a_rung_of_a_gone_node_that_is_skipped_is_kept_for_later(self):
        taken = step(self.LADDER, Standing(), diagnosis(Cause.MEMORY), gone={"spark2"})
        assert taken.standing.vacated == (1,)

    def test_a_start_that_took_its_node_down_is_not_taken_to_others(self):
        ladder = GroupPlan(ladder=(rung("mtp"), rung("none"), rung("none", node="spark2")))
        below = step(ladder, Standing(tries=1, bound=TOOK_DOWN), diagnosis(Cause.AWAY))
        assert (below.verb, below.standing.rung, below.standing.bound) == ("next", 1, TOOK_DOWN)
        end = step(ladder, below.standing.model_copy(update={"tries": 1}), diagnosis(Cause.AWAY))
        assert (end.verb, end.standing.rung, end.standing.bound) == ("end", 1, TOOK_DOWN)
        assert "no other one is to go down with it" in end.words
        assert rung_without(ladder, {"spark1"}, own=True) is None


def test_below_a_position_of_a_longer_ladder_is_no_rung_with_less_memory():
    """The group fell while a plan with fewer rungs was made."""
    assert rung_with_less(LADDER, len(LADDER.ladder) + 1) is None
