"""Published runs, counted: what speaks for a candidate, and how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.published.evidence import (
    CLEAR_ABOVE,
    EvidenceIndex,
    EvidenceLevel,
    PublishedEvidence,
    RunKey,
    evidence,
    evidence_from,
    read_evidence,
    written,
)

KEY = RunKey("m-27b", "dense-64", "vllm", "mtp", "nvfp4", 1)


def run(**given: object) -> PublishedEvidence:
    fields = {**KEY._asdict(), "rows": 3, "sources": ("a/b",), "alone": 20.0}
    return PublishedEvidence.model_validate(fields | given)


RUNS = st.builds(
    run,
    model=st.sampled_from(["m-27b", "other-27b"]),
    engine=st.sampled_from(["vllm", "sglang"]),
    method=st.sampled_from(["mtp", "none"]),
    format=st.sampled_from(["nvfp4", "fp8"]),
    nodes=st.sampled_from([1, 2, 4]),
    rows=st.integers(1, 50),
    sources=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True).map(tuple),
    alone=st.none() | st.floats(1, 100),
    busy=st.integers(0, 3),
)


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (run(), EvidenceLevel.MODEL),
        (run(nodes=2), EvidenceLevel.MODEL),
        (run(model="other-27b"), EvidenceLevel.SIBLING),
        (run(format="fp8"), EvidenceLevel.FORMAT),
        (run(family="moe-40"), EvidenceLevel.FAMILY),
        (run(family="moe-40", engine="sglang"), EvidenceLevel.NOTHING),
    ],
)
def test_levels(found: PublishedEvidence, level: EvidenceLevel) -> None:
    assert EvidenceIndex([found]).of(KEY).level is level


def test_a_run_on_fewer_nodes_proves_no_wider_one() -> None:
    wide = KEY._replace(nodes=2)
    assert EvidenceIndex([run()]).of(wide).level is EvidenceLevel.NOTHING
    assert EvidenceIndex([run(nodes=2)]).of(wide).level is EvidenceLevel.MODEL


@given(proven=RUNS, others=st.lists(RUNS, max_size=4), busy=st.booleans())
def test_an_unpublished_run_has_to_be_thirty_per_cent_faster(
    proven: PublishedEvidence, others: list[PublishedEvidence], busy: bool
) -> None:
    """Whatever was published of the one that somebody ran for the family."""
    index = EvidenceIndex([proven, *others])
    key = RunKey(*(getattr(proven, name) for name in RunKey._fields))
    unproven = index.of(key._replace(engine="trtllm"))
    assert unproven.level > EvidenceLevel.FORMAT
    assert unproven.discount(busy=busy) * CLEAR_ABOVE <= index.of(key).discount(busy=busy) + 1e-9


@given(runs=st.lists(RUNS, max_size=6), more=RUNS, busy=st.booleans())
def test_more_evidence_never_counts_against_a_candidate(
    runs: list[PublishedEvidence], more: PublishedEvidence, busy: bool
) -> None:
    before, after = EvidenceIndex(runs).of(KEY), EvidenceIndex([*runs, more]).of(KEY)
    assert after.discount(busy=busy) >= before.discount(busy=busy)
    assert after.level <= before.level


def test_published_rates_correct_a_prediction_by_half_if_one_source_has_them() -> None:
    one = EvidenceIndex([run(off_alone=0.2)]).of(KEY)
    two = EvidenceIndex([run(off_alone=0.2, sources=("a", "b"))]).of(KEY)
    assert one.correction(busy=False) == pytest.approx(2.718281828**0.1)
    assert two.correction(busy=False) == pytest.approx(2.718281828 ** (0.2 * 2 / 3))
    assert one.correction(busy=True) is None
    assert EvidenceIndex([run(off_alone=0.2, nodes=2)]).of(KEY).correction(busy=False) is None


def test_the_gain_of_more_nodes_is_corrected_by_a_source_that_ran_both() -> None:
    one, two = run(off_alone=0.2), run(nodes=2, off_alone=-0.1)
    assert EvidenceIndex([one, two]).of(KEY).scaling(2) == pytest.approx(2.718281828**-0.15)
    assert EvidenceIndex([one, two]).of(KEY).scaling(4) == 1.0
    another = run(nodes=2, off_alone=-0.1, sources=("c/d",))
    assert EvidenceIndex([one, another]).of(KEY).scaling(2) == 1.0
    siblings = [run(model="other-27b", off_alone=-0.4), run(model="other-27b", nodes=2, off_alone=-0.2)]
    assert EvidenceIndex([one, another, *siblings]).of(KEY).scaling(2) == pytest.approx(2.718281828**0.1)
    stored = [run(format="fp8", off_alone=-0.4), run(format="fp8", nodes=2, off_alone=-0.2)]
    assert EvidenceIndex(stored).of(KEY).scaling(2) == 1.0


def test_a_method_guesses_as_well_on_another_engine() -> None:
    """A run of the method on another engine is nearer than one of another method on this engine."""
    runs = [run(engine="sglang", off_alone=-0.2), run(method="none", off_alone=0.3), run(alone=None)]
    found = EvidenceIndex(runs).of(KEY)
    assert found.correction(busy=False) is None
    assert found.elsewhere(busy=False) == (pytest.approx(2.718281828**-0.1), "sglang")
    assert found.elsewhere(busy=True) is None
    other = EvidenceIndex(runs).of(KEY._replace(method="dspark"))
    assert other.elsewhere(busy=False) is None
    assert other.shared_correction(busy=False) == pytest.approx(2.718281828**0.15)


def test_the_file_reads_back() -> None:
    runs = (run(off_alone=-0.1, sources=("a/b", "c/d")), run(nodes=2, alone=None, busy=4))
    assert read_evidence(written(runs)) == runs


def test_a_wrong_line_is_named() -> None:
    with pytest.raises(SpecError, match=r"evidence\.csv:2: "):
        read_evidence(written([run()]).replace(",3,", ",many,"))


def test_the_packaged_file() -> None:
    key = RunKey("qwen3.6-27b", "dense-hybrid-5120x64", "sglang", "mtp", "fp8", 1)
    found = evidence().of(key)
    assert found.level is EvidenceLevel.MODEL
    assert "field report 000" in found.sources
    assert evidence().ran("qwen3.6-27b", "mtp")


def test_what_most_sources_run_for_others_is_less_of_a_risk_for_a_new_family() -> None:
    new = KEY._replace(family="moe-40")
    one = EvidenceIndex([run()]).of(new)
    many = EvidenceIndex([run(sources=("a", "b", "c", "d"))]).of(new)
    none = EvidenceIndex([]).of(new)
    assert none.discount(busy=False) < one.discount(busy=False) < many.discount(busy=False)
    other_format = EvidenceIndex([run(format="fp8")]).of(new)
    fewer_nodes = EvidenceIndex([run()]).of(new._replace(nodes=2))
    other_method = EvidenceIndex([run(method="none")]).of(new)
    assert one.support > max(other_format.support, fewer_nodes.support, other_method.support) > 0


def test_a_format_that_nobody_ran_on_the_engine_is_a_risk_like_such_a_method() -> None:
    """A format needs kernels of its own on each engine."""
    new = KEY._replace(family="moe-40", format="int4-int8")
    elsewhere = [run(sources=("a", "b")), run(engine="sglang", format="int4-int8", sources=("c",))]
    ran = [*elsewhere, run(format="int4-int8", nodes=1, sources=("b",))]
    assert EvidenceIndex(ran).of(new).support > EvidenceIndex(elsewhere).of(new).support
    other_method = EvidenceIndex(elsewhere).of(KEY._replace(family="moe-40", method="eagle3"))
    assert other_method.support == 2 * EvidenceIndex(elsewhere).of(new).support


def test_the_usual_engine_is_that_of_most_sources() -> None:
    runs = [
        run(sources=("a", "b")),
        run(engine="sglang", sources=("c",)),
        run(engine="sglang", method="none"),
    ]
    index = EvidenceIndex(runs)
    assert (index.usual_engine("mtp"), index.usual_engine("none"), index.usual_engine("dspark")) == (
        "vllm",
        "sglang",
        "",
    )


def test_other_evidence_counts_only_within_its_block() -> None:
    whole = evidence()
    with evidence_from([run()]):
        assert evidence().of(KEY).level is EvidenceLevel.MODEL
        assert evidence() is not whole
    assert evidence() is whole
