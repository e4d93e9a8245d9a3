from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.knowledge.versions import Truth, Version, every, parse_range, parse_version, some

YES, NO, UNKNOWN = Truth.YES, Truth.NO, Truth.UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.19.0", Version((0, 19, 0))),
        ("0.32.0+cpu", Version((0, 32, 0))),
        ("v0.26.0-aarch64-cu129-ubuntu2404", Version((0, 26, 0))),
        ("0.5.12.post1", Version((0, 5, 12), post=1)),
        ("0.5.12 re-tag", Version((0, 5, 12), label="re-tag")),
        ("1.3.0rc12", Version((1, 3, 0), pre=("rc", 12))),
        ("v0.27.2rc0-sm121", Version((0, 27, 2), pre=("rc", 0))),
        ("0.26.1rc1.dev608+g99a10304d", Version((0, 26, 1), pre=("rc", 1), snapshot=True)),
        ("0.25.2.dev0", Version((0, 25, 2), snapshot=True)),
        ("26.04", Version((26, 4))),
        ("b11434", Version((11434,))),
        ("11434", Version((11434,))),
        ("11434.0.0", Version((11434,))),
        ("26.05.post1-py3", Version((26, 5), post=1)),
        ("580.95.05", Version((580, 95, 5))),
        ("6.17.0-1014-nvidia", Version((6, 17, 0), build=1014)),
        ("7.0.0-1019-nvidia-64k", Version((7, 0, 0), build=1019)),
        ("2026-04-02", Version((2026, 4, 2))),
        (" 13.0 ", Version((13, 0))),
    ],
)
def test_versions_as_they_are_printed(text: str, expected: Version) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        "nightly",
        "cu130-nightly",
        "qwen38-27b",
        "0.1.dev20003+gad848fc41.d20260815",
        "20260625.dev0+g28",
        "0.19.",
        "x1",
    ],
)
def test_text_that_cannot_be_ordered_is_no_version(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize(
    ("wanted", "text", "answer"),
    [
        (">=0.24", "0.24.0", YES),
        (">=0.24", "0.27.1", YES),
        (">=0.24", "0.23.9", NO),
        ("<=0.19", "0.19.1", YES),  # the whole series
        ("<=0.19", "0.20.0", NO),
        ("<0.19", "0.19.1", NO),
        (">0.19", "0.19.1", NO),
        (">0.19", "0.20.0", YES),
        ("0.24-0.27", "0.24.0", YES),
        ("0.24-0.27", "0.27.1", YES),
        ("0.24 - 0.27", "0.28.0", NO),
        ("0.26.0", "0.26.0+cu130", YES),
        ("0.26.0", "0.26.1", NO),
        ("0.26", "0.26.1", YES),
        (">=0.24,<0.28,!=0.26.0", "0.26.1", YES),
        (">=0.24,<0.28,!=0.26.0", "0.26.0", NO),
        ("0.19,0.21-0.23", "0.22.1", YES),
        ("0.19,0.21-0.23", "0.20.0", NO),
        ("0.19-0.27,!=0.26", "0.26.1", NO),
        ("<1.3.0rc12", "1.3.0rc11", YES),
        ("<1.3.0rc12", "1.3.0rc12", NO),
        ("<1.3.0rc12", "1.3.0", NO),
        ("<1.3.0rc12", "1.2.0rc6", YES),
        (">=0.6.16.post3", "0.6.16.post2", NO),
        (">=0.6.16.post3", "0.6.16.post3", YES),
        ("590", "590.48.01", YES),
        ("580.159-580.173", "580.173.02", YES),
        ("580.159-580.173", "580.178.04", NO),
        (">=6.17.0-1000,<6.17.0-1014", "6.17.0-1008-nvidia", YES),
        (">=6.17.0-1000,<6.17.0-1014", "6.17.0-1014-nvidia", NO),
        ("6.17.0-1029", "6.17.0-1029-nvidia", YES),  # a kernel, not the span from 6.17.0 to 1029
        ("<2026-04-02", "2026-03-27", YES),
        ("26.06", "26.06-py3", YES),
    ],
)
def test_ranges(wanted: str, text: str, answer: Truth) -> None:
    assert parse_range(wanted).contains(text) is answer


@pytest.mark.parametrize(
    ("wanted", "text", "answer"),
    [
        (">=0.24", "nightly", UNKNOWN),
        ("<=0.19", "", UNKNOWN),
        (">=0.24", "0.1.dev20003+gad848fc41", UNKNOWN),
        # A release candidate of exactly the first release that a bound is about: before it or with it?
        (">=0.24", "0.24.0rc1", UNKNOWN),
        ("<0.24", "0.24.0rc1", UNKNOWN),
        ("0.26.0", "0.26.0rc2", UNKNOWN),
        ("<=0.24", "0.24.0rc1", YES),
        (">0.23", "0.24.0rc1", YES),
        # A snapshot is at least what its name says, and maybe much more.
        (">=0.24", "0.23.1rc1.dev1133+g647213129", UNKNOWN),
        ("<=0.24", "0.23.1rc1.dev1133+g647213129", UNKNOWN),
        ("<=0.19", "0.23.1rc1.dev1133+g647213129", NO),
        (">=0.19", "0.23.1rc1.dev1133+g647213129", YES),
        # Builds of one tag.
        ("0.5.12 re-tag", "0.5.12 re-tag", YES),
        ("0.5.12 re-tag", "0.5.12 original", NO),
        ("0.5.12 re-tag", "0.5.12", UNKNOWN),
        ("0.5.12 re-tag", "0.5.13", NO),
        ("0.5.12", "0.5.12 re-tag", YES),
        ("<6.17.0-1014", "6.17.0", UNKNOWN),
        # A literal is compared as it stands.
        ("0.1.dev20003+gad848fc41.d20260815", "0.1.dev20003+gad848fc41.d20260815", YES),
        ("0.1.dev20003+gad848fc41.d20260815", "0.27.1", NO),
        ("0.1.dev20003+gad848fc41.d20260815", "nightly", UNKNOWN),
        ("0.1.dev20003+gad848fc41.d20260815", "0.1.dev20003+gad848fc41", UNKNOWN),
        # Of another commit.
        ("0.1.dev20003+gad848fc41.d20260815", "0.28.1rc1.dev345+g4cc0cb6f7.d20260903", NO),
    ],
)
def test_unknown_versions_are_not_guessed(wanted: str, text: str, answer: Truth) -> None:
    assert parse_range(wanted).contains(text) is answer


@pytest.mark.parametrize("wanted", ["", " , ", ">=", ">=latest", "<0.23.1rc1.dev701", ">=0.24,"])
def test_an_empty_range_is_an_error(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version|not a version"):
        parse_range(wanted)


releases = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(releases, releases)
def test_a_release_is_below_in_or_above_a_series(version: str, bound: str) -> None:
    answers = [parse_range(operator + bound).contains(version) for operator in ("<", "==", ">")]
    assert sorted(answer.value for answer in answers) == ["no", "no", "yes"]


@given(releases, releases)
def test_each_comparison_has_its_opposite(version: str, bound: str) -> None:
    for operator, opposite in ((">=", "<"), ("<=", ">"), ("==", "!=")):
        assert (
            parse_range(operator + bound).contains(version)
            is parse_range(opposite + bound).contains(version).opposite
        )


@given(st.text(max_size=40))
def test_any_text_gets_an_answer(text: str) -> None:
    assert parse_range(">=0.24").contains(text) in Truth


@given(st.lists(st.sampled_from(Truth)))
def test_every_and_some_are_each_others_opposite(answers: list[Truth]) -> None:
    assert some(answers) is every(answer.opposite for answer in answers).opposite


def test_builds_of_llama_cpp_are_ordered_by_their_number() -> None:
    """As tagged, and as the program prints them; eight digits are a date, and cannot be ordered."""
    assert parse_range(">=b9175,<=b9333").contains("9333") is YES
    assert parse_range(">=b9175,<=b9333").contains("b11434") is NO
    assert parse_range("<b5721").contains("b5700") is YES
    assert parse_range(">=b9445").contains("nightly") is UNKNOWN
    assert parse_version("20260815") is None
