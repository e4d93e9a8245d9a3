from rungs import plan_of
from rungs import rung as planned

from sparkfleet.planner.types.image_refs import digests_of, tag_words, tags_of, with_digests

TAG, OTHER = "registry.test/vllm:1", "registry.test/sglang:1"
PINNED = f"{TAG}@sha256:{'a' * 64}"


def rung(*nodes, image=TAG, runtime="container"):
    return planned(*nodes, image=image, runtime=runtime)


def images(plan):
    return [rung.candidate.image for group in plan.groups for rung in group.ladder]


def test_tags_with_the_nodes_that_run_them_in_the_order_of_their_ranks():
    first, lower = tags_of(
        [plan_of(rung("b", "a"), rung("c")), plan_of(rung("c", "a"), rung("a", image=OTHER))]
    )
    assert first == {TAG: ("b", "a", "c")}
    assert lower == {OTHER: ("a",)}


def test_neither_a_digest_nor_a_process_is_looked_up():
    assert tags_of([plan_of(rung("a", image=PINNED), rung("a", image=None, runtime="process"))]) == ({}, {})


def test_every_rung_of_a_tag_gets_its_digest():
    found = with_digests(plan_of(rung("a"), rung("b"), rung("a", image=OTHER)), {TAG: PINNED})
    assert images(found) == [PINNED, PINNED, OTHER]


def test_a_digest_that_is_there_stays():
    mine = f"{TAG}@sha256:{'b' * 64}"
    assert images(with_digests(plan_of(rung("a", image=mine)), {TAG: PINNED})) == [mine]


def test_what_a_plan_carries_is_known_by_its_tags():
    assert digests_of(plan_of(rung("a", image=PINNED), rung("a", image=OTHER))) == {TAG: PINNED}
    assert digests_of(None) == {}


def test_a_tag_is_told_with_what_becomes_of_it():
    assert tag_words(PINNED) == PINNED
    assert "apply resolves the tag" in tag_words(TAG)
